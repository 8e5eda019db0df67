"""Recording of traffic: every inference request as a line of JSON in a ring of two files."""
