"""What makes the start of a command cheaper: nothing is compiled again, imported in vain, or kept awake."""
