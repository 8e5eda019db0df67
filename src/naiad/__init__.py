"""naiad: an inference server, wire- and file-compatible with NVIDIA Triton Inference Server."""

__version__ = "0.1.0"
