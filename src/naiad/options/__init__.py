"""Server options: the flags of `naiad serve` and what they mean."""
