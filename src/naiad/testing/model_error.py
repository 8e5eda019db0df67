"""A model's error, as tests see it."""


class ModelError(Exception):
    """The model responded to a request with an error; the text is its message.

    A function that stands for a called model raises it to respond with an error.
    """
