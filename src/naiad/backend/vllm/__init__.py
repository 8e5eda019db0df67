"""The vLLM backend: directories with a `model.json`, which an engine of vLLM in a worker process generates with."""
