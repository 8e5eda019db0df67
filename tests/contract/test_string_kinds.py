"""What asks whether an array is of strings knows NumPy 2's kind T; `STRING_KINDS` has all kinds."""

import re
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "naiad"
OWNERS = {SOURCE / "core" / "datatype.py"}
WORKER = SOURCE / "worker"
"""Imports nothing of the server; its arrays are normalized when tensors are made of them."""
_KINDS = re.compile(r'\bin "((?=\w*S)(?=\w*U)[OSU]+)"')


def test_no_list_of_kinds_of_strings_lacks_one():
    files = [path for path in SOURCE.rglob("*.py") if path not in OWNERS and WORKER not in path.parents]
    assert files
    own = [f"{path.relative_to(SOURCE)}: {found}" for path in files for found in _KINDS.findall(path.read_text())]
    assert not own, f"use STRING_KINDS of naiad.core.datatype: {own}"
