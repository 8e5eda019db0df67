"""The LiteRT backend."""
