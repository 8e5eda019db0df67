"""Access rules of the API, and the log lines of requests that are refused."""
