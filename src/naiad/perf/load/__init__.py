"""What is sent when: arrivals of open loops, searches over loads, sequences, and the mixture of models. Pure."""
