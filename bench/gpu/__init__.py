"""Evidence on a real GPU, collected within some minutes by one command.

    python -m bench.gpu --out DIR [--minutes 8] [--parts correctness,memory] [--rehearse]

Each part runs in a process of its own with a time limit of its own; its rows are on the disk as soon as they are
known. A part that fails, hangs, or lacks a library has a row that says so, and the next ones go on. `--rehearse` runs
the same parts on the CPU, with tiny models. DIR gets `results.json`, `summary.txt`, and `logs.txt`: the ends of logs.
Start at `parts.py` (what is measured), `room.py` (what a part is given), `run.py` (how parts are run).
"""
