"""What is sent when: arrivals of open loops, searches over loads, and sequences. Pure."""
