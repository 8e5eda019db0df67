"""Execution of batches: requests decoded, `execute` called, responses encoded and sent."""
