"""Text out of a decoder, token by token: what is asked for, sampling, pieces of text, and the responses."""
