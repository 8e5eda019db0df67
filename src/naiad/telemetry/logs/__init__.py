"""The server's log."""
