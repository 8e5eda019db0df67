"""What `naiad check` says of models that a server refuses before it loads them."""

import hashlib
import re
from pathlib import Path

import pytest

from naiad.repository.model_check import ModelReport, check_path
from naiad.server.before_load import check_before_load

BACKENDS = ("identity", "onnxruntime", "python")
MODEL = """backend: "identity"
max_batch_size: 8
input { name: "I" data_type: TYPE_FP32 dims: [ 4 ] }
input { name: "J" data_type: TYPE_FP32 dims: [ 1 ] optional: true }
output [ { name: "O" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""
ENSEMBLE = """platform: "ensemble"
max_batch_size: 8
input [ { name: "I" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "O" data_type: TYPE_FP32 dims: [ 4 ] } ]
ensemble_scheduling { step [ { model_name: "%s" model_version: %d
  input_map { key: "I" value: "I" } output_map { key: "O" value: "O" } } ] }
"""


def write(root: Path, name: str, config: str) -> None:
    (root / name / "1").mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(config)


def checked(path: Path) -> dict[str, ModelReport]:
    reports = check_path(path, known_backends=BACKENDS)
    check_before_load(reports)
    return {report.name: report for report in reports}


def messages(report: ModelReport) -> list[str]:
    return [f"{each.line}: {each.message}" for each in report.problems if each.is_error]


def warm_up(inputs: str, batch_size: int = 1) -> str:
    return f'model_warmup {{ name: "w" batch_size: {batch_size} {inputs} }}'


def tensor(name: str, kind: str = "TYPE_FP32", dims: int = 4) -> str:
    return f'inputs {{ key: "{name}" value {{ data_type: {kind} dims: [ {dims} ] zero_data: true }} }}'


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ("instance_group { count: 100000 }", "0: .*asks for 100000 instances, the limit is"),
        (
            warm_up(tensor("I")) + " " + warm_up(tensor("I")).replace("size: 1", "size: 1 count: 1000000"),
            "1000001 war",
        ),
        (warm_up(tensor("I", "TYPE_INT32")), "6: warmup sample 'w': .*data-type is 'INT32', but model 'm' expects"),
        (warm_up(tensor("I", dims=5)), r"6: warmup sample 'w': .*Expected \[-1,4\], got \[1,5\]"),
        (warm_up(tensor("J", dims=1)), r"6: warmup sample 'w': .*missing required input\(s\) \['I'\]"),
        ('model_repository_agents { agents { name: "nope" } }', "6: unknown repository agent 'nope'"),
        (
            'model_repository_agents { agents { name: "checksum" parameters { key: "MD5:1/f" value: "0" } } }',
            "6: MD5 digest of .*1/f is not '0'",
        ),
    ],
)
def test_refused_models_are_errors(tmp_path: Path, extra: str, expected: str) -> None:
    write(tmp_path, "m", MODEL + extra)
    (tmp_path / "m" / "1" / "f").write_text("x")
    (found,) = messages(checked(tmp_path)["m"])
    assert re.search(expected, found)


def test_accepted_models_have_no_error(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"x").hexdigest()
    agents = f'agents {{ name: "checksum" parameters {{ key: "SHA256:1/f" value: "{digest}" }} }}'
    samples = warm_up(tensor("I")) + warm_up(tensor("I", dims=5), batch_size=0)
    write(tmp_path, "m", MODEL + f"model_repository_agents {{ {agents} }} {samples} instance_group {{ count: 2 }}")
    (tmp_path / "m" / "1" / "f").write_text("x")
    write(tmp_path, "bare", 'backend: "python"\n' + warm_up(tensor("I")))
    (tmp_path / "bare" / "1" / "model.py").write_text("")
    assert {name: messages(report) for name, report in checked(tmp_path).items()} == {"m": [], "bare": []}


def test_ensembles_need_models_that_load(tmp_path: Path) -> None:
    write(tmp_path, "good", MODEL)
    write(tmp_path, "bad", MODEL + "instance_group { count: 100000 }")
    write(tmp_path, "outer", ENSEMBLE % ("of_bad", -1))
    write(tmp_path, "of_bad", ENSEMBLE % ("bad", -1))
    write(tmp_path, "of_good", ENSEMBLE % ("good", 1))
    write(tmp_path, "of_other", ENSEMBLE % ("good", 2))
    found = {name: messages(report) for name, report in checked(tmp_path).items() if name != "bad"}
    assert found == {
        "good": [],
        "of_good": [],
        "of_bad": ["5: ensemble 'of_bad' depends on 'bad', which cannot be loaded"],
        "outer": ["5: ensemble 'outer' depends on 'of_bad', which cannot be loaded"],
        "of_other": ["5: ensemble 'of_other' depends on 'good' whose required version 2 is not loaded"],
    }


def test_backend_without_files_needs_none(tmp_path: Path) -> None:
    write(tmp_path, "m", MODEL + 'default_model_filename: "nope.bin"')
    report = checked(tmp_path)["m"]
    assert [(each.severity, "no model file 'nope.bin'" in each.message) for each in report.problems] == [
        ("warning", True)
    ]
