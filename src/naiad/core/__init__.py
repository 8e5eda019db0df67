"""The nouns: datatype, tensor, request, response, batch, errors."""
