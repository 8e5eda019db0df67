"""`naiad optimize`."""
