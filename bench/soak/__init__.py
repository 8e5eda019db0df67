"""Soak tests: very many requests with errors, cancels and clients that leave, every single answer looked at."""
