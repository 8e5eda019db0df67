"""The only door to inference: served model versions, submit, control."""
