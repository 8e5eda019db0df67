"""The container contracts of clouds: routes of their own endpoints, forwarded to the REST routes."""
