"""The forms in which a result is shown and stored."""
