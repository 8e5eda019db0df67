"""Accounts of requests: the access log, and the requests, bytes and limits of API keys."""
