"""The process of a server: its event loop and signals, memory, drain, and the service manager."""
