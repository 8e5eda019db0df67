"""`python -m bench.gpu --rehearse` on the CPU: every part in a long run, a short one in CI."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench.gpu.parts import PARTS

from support.long_run import is_long

ROOT = Path(__file__).parents[2]
LIMIT_S = 900
"""A machine that others use, too, takes several times what an idle one does."""
pytestmark = pytest.mark.timeout(LIMIT_S + 60)
NEED_GPU = {"device": "bytes between host and GPU", "metrics": "figures", "transfers": "cuda 1 MiB"}
IN_CI = ("metrics",)
"""Other tests serve what the other parts measure: test_pytorch_aot.py, test_optimize_profile.py and others."""
NAMES = [part.name for part in PARTS if part.by_default and (is_long() or part.name in IN_CI)]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    out = tmp_path_factory.mktemp("gpu")
    command = [
        sys.executable,
        "-m",
        "bench.gpu",
        "--out",
        str(out),
        "--rehearse",
        "--minutes",
        "14",
        "--parts",
        ",".join(NAMES),
    ]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
    return out


def test_every_part_has_rows_and_none_fails(out):
    document = json.loads((out / "results.json").read_text())
    parts = {row["part"] for row in document["rows"]}
    assert parts == set(NAMES)
    assert not [row for row in document["rows"] if row["verdict"] == "failed"]
    assert document["facts"]["versions"]["torch"]
    assert "bench.gpu --out" in document["facts"]["command"]


def test_what_needs_a_gpu_says_so(out):
    rows = {(row["part"], row["check"]): row for row in json.loads((out / "results.json").read_text())["rows"]}
    for key in NEED_GPU.items():
        if key[0] not in NAMES:
            continue
        assert rows[key]["verdict"] == "not run"
        assert "no GPU" in rows[key]["note"]


def test_summary_fits_and_logs_are_kept(out):
    assert len((out / "summary.txt").read_text()) < 12_000
    assert (
        "Started HTTPService" in (out / "logs.txt").read_text()
        or "correctness/part.log" in (out / "logs.txt").read_text()
    )
