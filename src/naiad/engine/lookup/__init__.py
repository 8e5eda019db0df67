"""Where a request finds its model."""
