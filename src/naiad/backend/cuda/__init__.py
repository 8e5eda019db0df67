"""The CUDA runtime, by ctypes, and device memory of frameworks."""
