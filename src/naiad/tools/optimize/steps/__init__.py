"""What the steps of an optimization share: the journal with their results, the verdicts, the environment."""
