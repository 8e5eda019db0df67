"""The Model Context Protocol: models as tools of language models."""
