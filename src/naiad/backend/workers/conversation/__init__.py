"""Conversations with workers: batches out, responses back."""
