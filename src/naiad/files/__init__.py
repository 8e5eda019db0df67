"""Files of models, directories that processes hold while they use them, and the removal of what dead ones left."""
