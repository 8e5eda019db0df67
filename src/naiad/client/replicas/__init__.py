"""A client of several servers with the same models: which one gets a call, and which calls are sent again."""
