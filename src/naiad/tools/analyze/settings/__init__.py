"""The settings of an analysis, from Model Analyzer's YAML file and flags."""
