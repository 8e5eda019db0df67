"""Everything that a client can ask of the server, declared once for both protocols."""
