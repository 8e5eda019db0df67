"""The Model Context Protocol: messages, and models as tools."""
