"""Schedulers as pure functions of events and time: they decide which requests execute together, and when."""
