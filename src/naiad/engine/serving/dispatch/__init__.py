"""Which instance gets which batch: queues, the wake-up of runners, and the responses on their way back."""
