"""`naiad analyze`: the configuration of a model that serves a load best, found on a running server."""
