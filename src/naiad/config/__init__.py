"""Model configuration: schema, pbtxt, validation, auto-complete."""
