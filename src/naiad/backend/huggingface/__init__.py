"""The Hugging Face backend: directories with `config.json`, `model.safetensors` and `tokenizer.json`."""
