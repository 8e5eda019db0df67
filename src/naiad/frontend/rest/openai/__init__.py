"""The routes of the OpenAI API, below /v1."""
