"""The adaptive batcher."""
