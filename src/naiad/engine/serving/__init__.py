"""One served version: its queue, its instances, its batches and their responses."""
