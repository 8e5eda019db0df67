"""PyTriton's module path of the request type; there is no proxy here."""
