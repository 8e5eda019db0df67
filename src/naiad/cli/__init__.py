"""The verbs of the `naiad` command, one file each."""
