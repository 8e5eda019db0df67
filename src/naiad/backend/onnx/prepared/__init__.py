"""Prepared forms of ONNX models: optimised graphs whose weights are mapped, kept between loads and between starts."""
