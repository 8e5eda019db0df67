"""From columns of requests to figures that can be trusted: intervals, the end of a measurement, rows, comparison.

Pure: no clock, no I/O. `verdict` ends a measurement, `row` sums it up, `compare` compares two runs.
"""
