"""Options of what clients reach: endpoints, addresses, access, clouds."""
