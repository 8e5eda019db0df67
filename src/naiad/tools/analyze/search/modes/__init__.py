"""The modes of a search: `predict`, and Model Analyzer's modes."""
