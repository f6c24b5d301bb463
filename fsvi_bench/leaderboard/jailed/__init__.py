"""Runs the code of entries in a sandbox (the jail): its setup, the process inside it, and the verifier's side."""
