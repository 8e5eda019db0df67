"""`naiad client-code`: a typed client module for one model."""
