"""What executes a model for the gate: a function, a server, naiad's own code in this process or in another one."""
