"""Values of data files as tensors of a model: what the tools that read files share."""
