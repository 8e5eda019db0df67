"""Header fields of responses that all routes use."""

JSON_HEADERS = ((b"Content-Type", b"application/json"),)
RETRY_AFTER = (b"Retry-After", b"1")
"""Header field of every 503."""
