"""Models of other servers."""
