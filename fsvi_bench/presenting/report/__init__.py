"""`fsvi-bench report`: a self-contained HTML page from the records and traces of a folder, with its figures."""
