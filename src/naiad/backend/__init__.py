"""The adapter interface, the worker process, and one adapter a file."""
