"""The example of docs/batch-prediction.md: files, command and outputs are taken from the page."""

import os
import re
import subprocess
import sys
from pathlib import Path

from support.predict_command import ENVIRONMENT

PAGE = Path(__file__).parents[2] / "docs" / "batch-prediction.md"
BLOCK = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def run(folder: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    arguments = [sys.executable, *command]
    return subprocess.run(
        arguments, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=90, check=False
    )


def test_the_example_does_what_its_page_says(tmp_path: Path) -> None:
    blocks = dict(BLOCK.findall(PAGE.read_text()))
    outputs = {name: blocks.pop(name) for name in ("out.jsonl", "out.jsonl.rejected.jsonl")}
    verb = blocks.pop("command").split()
    for title, content in blocks.items():
        (tmp_path / title).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / title).write_text(content)
    done = run(tmp_path, "-m", *verb)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")
    assert {name: (tmp_path / name).read_text() for name in outputs} == outputs
    done = run(tmp_path, "job.py")
    assert done.stdout.split() == ["load", "predict", "write", "3", "1", "out.csv.rejected.jsonl"], done.stderr
    assert (tmp_path / "out.csv").read_text() == "row,id,RATIO\n0,a,0.25\n1,b,\n2,c,0.375\n"
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".partial")]
