"""The forms of a model configuration, pbtxt and JSON: read, written, described with positions."""
