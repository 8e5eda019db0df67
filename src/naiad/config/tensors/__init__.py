"""What a configuration says of tensors: columns, pictures and padding."""
