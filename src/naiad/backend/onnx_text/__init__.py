"""ONNX models that take texts: the export of an encoder with its `tokenizer.json` beside it."""
