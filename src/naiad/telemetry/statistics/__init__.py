"""Statistics of model versions, counted as Triton counts them."""
