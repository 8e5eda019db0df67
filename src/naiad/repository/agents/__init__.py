"""Repository agents: they check or fetch the files of a model before a load."""
