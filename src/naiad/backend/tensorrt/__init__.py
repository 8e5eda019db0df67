"""The TensorRT backend: serialised engines with their optimization profiles."""
