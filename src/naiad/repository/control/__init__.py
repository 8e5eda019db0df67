"""The control modes: none, explicit, poll."""
