"""The measurement of a load: when it begins and ends, its columns, and what is read from the server meanwhile."""
