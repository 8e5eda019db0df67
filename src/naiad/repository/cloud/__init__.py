"""Model repositories in object stores: where they are, who may read them, and what of them lies here."""
