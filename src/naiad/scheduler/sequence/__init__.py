"""The sequence batcher: the strategies direct and oldest."""
