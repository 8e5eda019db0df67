"""`naiad new` and `naiad split`: write a backend package, or the stages of a model."""
