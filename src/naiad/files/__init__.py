"""Directories that processes hold while they use them, and the removal of what dead processes have left."""
