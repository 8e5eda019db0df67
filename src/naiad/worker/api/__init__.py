"""The API of model code: `pb_utils` with its requests, responses, tensors, metrics and logger."""
