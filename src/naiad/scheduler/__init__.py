"""Pure schedulers: (event, now) to decisions."""
