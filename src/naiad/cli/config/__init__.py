"""`naiad config` and `naiad key`: the configuration of models, the values of flags, API keys."""
