"""The llama.cpp backend: GGUF files of language models, with continuous batching over the instances of a version."""
