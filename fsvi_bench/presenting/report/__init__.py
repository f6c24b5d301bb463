"""`fsvi-bench report`: records and traces of a folder -> one HTML page that needs no network, and its figures."""
