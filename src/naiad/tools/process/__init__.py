"""Child processes of the tools: start, limits, output and end; servers of their own; what processes use."""
