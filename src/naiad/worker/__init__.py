"""The worker process of a Python model: its channel, `pb_utils` and the loop that executes batches.

Needs only the standard library and numpy and runs on Python 3.8 and newer, because a model may bring its own
interpreter. Nothing here imports naiad outside this package.
"""
