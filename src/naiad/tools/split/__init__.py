"""Cuts an ONNX model into stages that run one after another: a pipeline over devices or processes."""
