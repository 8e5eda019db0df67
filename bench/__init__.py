"""Benchmarks: the same models served by naiad and by its peers, under the same load. `python -m bench --help`."""

import sys
from pathlib import Path

# What is measured is this checkout, whether it is installed or not.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
