"""The whole study of Burt et al. (2020): a small table made from records, and a page made from that table alone."""
