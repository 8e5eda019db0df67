"""What all transports share for their connections: limits, the budget of bodies, slow peers, closing."""
