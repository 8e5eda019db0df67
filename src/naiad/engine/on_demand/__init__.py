"""Requests for models on demand: held on the event loop while their model loads."""
