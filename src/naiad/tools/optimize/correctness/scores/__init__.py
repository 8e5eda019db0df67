"""How far two tensors are from each other, and how far they may be."""
