"""The ONNX GenAI backend: directories of onnxruntime-genai, which computes logits and keeps the cache."""
