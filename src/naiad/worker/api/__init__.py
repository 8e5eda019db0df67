"""What model code sees: `pb_utils` with its requests, responses, tensors, metrics and logger."""
