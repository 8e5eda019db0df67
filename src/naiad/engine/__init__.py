"""The only entry point of inference: served model versions, requests, and control."""
