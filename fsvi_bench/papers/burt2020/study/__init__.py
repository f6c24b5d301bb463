"""The whole study of Burt et al. (2020): records to a small table, and from that table alone the page about it."""
