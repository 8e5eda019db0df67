"""Model configuration (schema, pbtxt, validation, auto-complete) and server options."""
