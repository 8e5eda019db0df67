"""A worker process as the server sees it: its interpreter, its start and end, its channel."""
