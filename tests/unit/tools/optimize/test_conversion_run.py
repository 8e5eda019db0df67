import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from naiad.core.datatype import DataType
from naiad.core.tensor import TensorSpec
from naiad.tools.optimize.candidate import Candidate, Precision, Status
from naiad.tools.optimize.converters.conversions import Converter
from naiad.tools.optimize.converters.operators import missing_operator
from naiad.tools.optimize.optimize_source import Format, Source
from naiad.tools.optimize.samples.sample_reader import ArraySamples
from naiad.tools.process.running import ProcessLimits
from support.conversions_here import conversions_here

INPUTS = (TensorSpec("x", DataType.FP32, (-1, 2)),)
LIMITS = ProcessLimits(30, 400)
MODULE = """
import os, subprocess, sys, time
from pathlib import Path

def convert(job):
    with open(job.settings["log"], "a") as log:
        log.write("run\\n")
    Path(job.output, "model.onnx").write_text("half")
    what = job.settings["what"]
    if what == "crash":
        os._exit(3)
    if what == "signal":
        os.abort()
    if what == "hang" and not Path(job.settings["log"] + ".go").exists():
        subprocess.Popen(["sleep", "1000"]).wait()
    if what == "memory":
        taken = []
        while True:
            taken.append(b"x" * 10_000_000)
    if what == "print":
        while True:
            print("x" * 10_000)
    if what == "error":
        raise RuntimeError("Exporting the operator 'aten::fft_rfft' to ONNX opset version 17 is not supported.")
    if what == "nothing":
        Path(job.output, "model.onnx").unlink()
        return {}
    print("converted")
    Path(job.output, "model.onnx").write_text("all")
    return {"threads": "2"}
"""


@pytest.fixture
def converter(tmp_path, monkeypatch):
    package = tmp_path / "modules" / "fake"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "converter.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    return make(tmp_path)


@pytest.fixture
def in_this_process():
    """For tests of what is converted again: the tests of limits, crashes and logs have subprocesses."""
    with conversions_here():
        yield
    for name in ("fake", "fake.converter"):
        sys.modules.pop(name, None)


def make(folder, limits=LIMITS):
    source = folder / "source.model"
    if not source.exists():
        source.write_text("weights")
    samples = ArraySamples({"x": np.ones((4, 2), np.float32)}, INPUTS)
    return Converter.open(Source("m", Format.TORCH, source, INPUTS), samples, folder / "work", limits=limits)


def candidate(folder, what="work", **settings):
    values = {"module": "fake.converter", "what": what, "log": str(folder / "runs"), **settings}
    return Candidate("onnx-fp32", Format.ONNX, Precision.FP32, "onnxruntime", values)


def runs(folder):
    return (folder / "runs").read_text().count("run")


def test_result_has_files_log_and_parameters(converter, tmp_path):
    result = converter.convert(candidate(tmp_path))
    assert result.status is Status.CONVERTED, result.log
    assert (result.folder / "model.onnx").read_text() == "all"
    assert result.backend_parameters == {"threads": "2"}
    assert "converted" in result.log
    assert result.peak_mib > 1


@pytest.mark.usefixtures("in_this_process")
def test_second_run_reads_the_cache(converter, tmp_path):
    first = converter.convert(candidate(tmp_path))
    assert make(tmp_path).convert(candidate(tmp_path)) == first
    assert runs(tmp_path) == 1


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    "change", ["source", "settings", "samples", "source.bin", "source.model.data", "source.model_data"]
)
def test_changed_content_converts_again(converter, tmp_path, change):
    converter.convert(candidate(tmp_path))
    settings = {}
    if change == "source":
        (tmp_path / "source.model").write_text("changed")
    elif change.startswith("source."):
        (tmp_path / change).write_text("weights beside the model")
    elif change == "settings":
        settings = {"opset": 18}
    else:
        samples = ArraySamples({"x": np.zeros((4, 2), np.float32)}, INPUTS)
        converter = Converter.open(converter.source, samples, tmp_path / "work")
    converter.convert(candidate(tmp_path, **settings))
    assert runs(tmp_path) == 2


@pytest.mark.parametrize(
    ("what", "limits", "reason"),
    [
        ("crash", ProcessLimits(30, 400), r"crashed \(exit status 3\)"),
        ("signal", ProcessLimits(30, 400), r"crashed \(signal 6\)"),
        ("hang", ProcessLimits(2, 400), "not finished after 2 s"),
        ("memory", ProcessLimits(30, 200), "more than the limit of 200 MiB"),
        ("print", ProcessLimits(30, 400), "bytes of output"),
        ("nothing", ProcessLimits(30, 400), "wrote no file"),
        ("error", ProcessLimits(30, 400), "operator aten::fft_rfft has no counterpart: RuntimeError"),
    ],
)
def test_failed_converter_has_reason_and_no_files(converter, tmp_path, what, limits, reason):
    converter = make(tmp_path, limits)
    result = converter.convert(candidate(tmp_path, what))
    assert result.status is Status.FAILED
    assert re.search(reason, result.reason)
    assert list(result.folder.iterdir()) == []
    assert converter.convert(candidate(tmp_path, what)).reason == result.reason
    assert runs(tmp_path) == 1


def test_failure_is_tried_again_with_other_limits(converter, tmp_path):
    converter.convert(candidate(tmp_path, "crash"))
    make(tmp_path, ProcessLimits(31, 400)).convert(candidate(tmp_path, "crash"))
    assert runs(tmp_path) == 2


def test_missing_module_is_a_failure(converter, tmp_path):
    result = converter.convert(candidate(tmp_path, module="fake.missing"))
    assert "ModuleNotFoundError: No module named 'fake.missing'" in result.reason


def test_candidate_of_a_failed_one_fails(converter, tmp_path):
    first = candidate(tmp_path, "crash")
    second = Candidate("onnx-fp16", Format.ONNX, Precision.FP16, "onnxruntime", after="onnx-fp32")
    results = list(converter.convert_all([first, second]))
    assert results[1].reason == "made from 'onnx-fp32', which has failed"


def test_planned_elsewhere_is_not_run(converter):
    planned = Candidate("tensorrt-fp16", Format.TENSORRT, Precision.FP16, "tensorrt", not_run="needs an NVIDIA GPU")
    assert converter.convert(planned).status is Status.NOT_RUN


def test_other_interpreter_converts(converter, tmp_path):
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    result = converter.convert(candidate(tmp_path), python=python)
    # The other environment has neither numpy nor the module of this test.
    assert result.command[0] == str(python)
    assert result.status is Status.FAILED
    assert "No module named 'numpy'" in result.log


SCRIPT = """
import sys
sys.path[:0] = sys.argv[2:]
from pathlib import Path
from tests.unit.tools.optimize.test_conversion_run import candidate, make
folder = Path(sys.argv[1])
converter = make(folder)
converter.convert(candidate(folder))
converter.convert(candidate(folder, "hang"))
"""


def test_kill_in_the_middle_repeats_nothing_finished(converter, tmp_path):
    root = Path(__file__).parents[4]
    paths = (root, root / "src", root / "tests")
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, tmp_path, *paths, tmp_path / "modules"])
    deadline = time.monotonic() + 60
    while not ((tmp_path / "runs").exists() and runs(tmp_path) == 2):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (tmp_path / "runs.go").touch()
    converter.convert(candidate(tmp_path))
    assert runs(tmp_path) == 2
    assert converter.convert(candidate(tmp_path, "hang")).status is Status.CONVERTED
    assert _has_ended(tmp_path)


def _has_ended(folder):
    """Wait until no subprocess of the killed run is left."""
    while any(str(folder).encode() in _command(each) for each in Path("/proc").glob("[0-9]*")):
        time.sleep(0.05)
    return True


def _command(process):
    try:
        return b"" if int(process.name) == os.getpid() else (process / "cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("text", "operator"),
    [
        ("No ONNX function found for <OpOverload(op='aten.fft', overload='d')>", "aten.fft"),
        ("Unable to find a shape calculator for type '<class 'mine.Odd'>'.", "mine.Odd"),
        ("OpenVINO does not support the following ONNX operations: Foo-1", "Foo"),
        ("Could not find an implementation for Bar(7) node", "Bar"),
        ("Tensorflow op [a/b: Baz] is not supported", "Baz"),
        ("out of memory", ""),
    ],
)
def test_message_names_the_operator(text, operator):
    assert missing_operator(text) == operator


@pytest.mark.usefixtures("in_this_process")
def test_job_file_stays_beside_the_result(converter, tmp_path):
    result = converter.convert(candidate(tmp_path))
    assert json.loads((result.folder.parent / "job.json").read_text())["format"] == "onnx"
