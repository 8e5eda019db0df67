"""A model's error, as tests see it."""


class ModelError(Exception):
    """The model answered a request with an error; the text is its message.

    A function that stands for a called model raises it to answer with an error.
    """
