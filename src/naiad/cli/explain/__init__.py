"""`naiad explain` and `naiad graph`: how requests are scheduled, and how an ensemble connects its models."""
