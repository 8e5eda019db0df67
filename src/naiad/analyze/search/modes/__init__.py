"""The modes of a search: `predict`, and those of Model Analyzer."""
