"""Sends the requests of a load and records what became of each: the loop, its timer, and generator processes."""
