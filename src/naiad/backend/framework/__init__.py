"""What the adapters of frameworks share: model files, parameters and thread counts of a configuration."""
