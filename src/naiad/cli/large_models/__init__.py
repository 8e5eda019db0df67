"""Commands for models that are larger than a machine or a device."""
