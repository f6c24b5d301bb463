"""Code of entries run where it can do no harm: the jail, the process inside it, and the verifier's side of the pipe."""
