"""What backends of models that take texts share: directories with `config.json` and `tokenizer.json`."""
