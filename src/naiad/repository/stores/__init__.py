"""Stores of model files: directories, several of them as one, bare files, namespaces."""
