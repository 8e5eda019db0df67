"""What a configuration says of tensors: columns, pictures, padding, and those that the server adds."""
