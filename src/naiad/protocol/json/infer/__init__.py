"""The bodies of inference requests over HTTP."""
