"""`naiad check --load`: models are really loaded, and errors of the load are reported."""

import json
from pathlib import Path

import pytest

from naiad.cli.check import check
from support import onnx_models
from support.ensemble_models import tensor, write_ensemble
from support.model_repository import add_sub_config, write_model, write_python_add_sub
from support.model_zoo import python_source
from support.server_process import SOURCE


def write_initializing(root: Path, name: str, what: str) -> None:
    write_model(
        root, name, add_sub_config("python"), {"1/model.py": python_source({}, initialize="import signal\n" + what)}
    )


def write_add_sub(root: Path, name: str, content: bytes = b"", extra: str = "") -> None:
    config = add_sub_config("onnxruntime", extra=extra)
    write_model(root, name, config, {"1/model.onnx": content or onnx_models.add_sub()})


@pytest.fixture(autouse=True)
def found_by_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "models"


def test_models_are_loaded_and_real_errors_shown(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_add_sub(repository, "fine", extra="dynamic_batching { }")
    write_add_sub(repository, "garbage", b"\x3a\x02\xff\xff")
    write_initializing(repository, "raises", "raise ValueError('no weights in /nowhere')")
    write_initializing(repository, "deadly", "os.kill(os.getppid(), signal.SIGKILL)")
    names = {key: key for key in ("INPUT0", "INPUT1")}, {key: key for key in ("OUTPUT0", "OUTPUT1")}
    inputs, outputs = ([tensor(key) for key in each] for each in names)
    write_ensemble(repository, "good_pipeline", inputs, outputs, [("fine", *names)])
    write_ensemble(repository, "bad_pipeline", inputs, outputs, [("raises", *names)])
    assert check.run([str(repository)]) == 0, capsys.readouterr().out
    assert "errors" in capsys.readouterr().out, "the files look well"

    assert check.run([str(repository), "--load", "--jobs=2"]) == 1
    text = capsys.readouterr().out
    reported = {line.partition(": ")[0]: line for line in text.splitlines()}
    assert reported["fine"].startswith("fine: ok (onnxruntime, version 1, loaded in ")
    assert reported["good_pipeline"].startswith("good_pipeline: ok (ensemble, version 1, loaded in ")
    assert "the model does not load: version 1: " in reported[f"{repository}/garbage"]
    assert "no weights in /nowhere" in reported[f"{repository}/raises"]
    assert "its process ended with SIGKILL" in reported[f"{repository}/deadly"]
    assert "depends on 'raises' which has no loaded version" in reported[f"{repository}/bad_pipeline"]
    assert text.splitlines()[-1] == "4 errors, 0 warnings in 6 models"


def test_a_warm_up_that_fails_is_found(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value = 'value { data_type: TYPE_FP32 dims: [ 16 ] input_data_file: "short" }'
    inputs = " ".join(f'inputs {{ key: "INPUT{number}" {value} }}' for number in range(2))
    write_add_sub(repository, "half_warm", extra=f'model_warmup [ {{ name: "half" batch_size: 1 {inputs} }} ]')
    (repository / "half_warm" / "warmup").mkdir()
    (repository / "half_warm" / "warmup" / "short").write_bytes(b"123")
    assert check.run([str(repository / "half_warm"), "--json"]) == 0
    capsys.readouterr()
    assert check.run([str(repository / "half_warm"), "--load", "--json"]) == 1
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["model"], row["severity"], row["file"]) == ("half_warm", "error", str(repository / "half_warm"))
    assert "has 3 bytes, expected 64" in row["message"]


def test_a_load_that_takes_too_long_is_ended(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_initializing(repository, "slow", "time.sleep(600)")
    assert check.run([str(repository), "--load", "--load-timeout-secs=4"]) == 1
    assert "it was not ready after 4 s" in capsys.readouterr().out


def test_model_with_known_error_is_not_loaded(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_python_add_sub(repository, "wrong", extra="max_batch_sise: 4")
    assert check.run([str(repository), "--load"]) == 1
    text = capsys.readouterr().out
    assert "unknown field 'max_batch_sise'" in text
    assert "does not load" not in text


def test_a_bare_model_file_is_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sums.onnx"
    path.write_bytes(onnx_models.add_sub())
    assert check.run([str(path), "--load"]) == 0
    assert "sums: ok (onnxruntime, loaded in " in capsys.readouterr().out


def test_a_configuration_alone_cannot_be_loaded(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_add_sub(repository, "fine")
    with pytest.raises(SystemExit) as ended:
        check.run([str(repository / "fine" / "config.pbtxt"), "--load"])
    assert ended.value.code == 2
    assert "--load needs the model" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--jobs=0", "--jobs=many", "--load-timeout-secs=0", "--load-timeout-secs=inf"])
def test_flags_out_of_range_are_refused(repository: Path, flag: str) -> None:
    with pytest.raises(SystemExit) as ended:
        check.run([str(repository), flag])
    assert ended.value.code == 2


@pytest.mark.parametrize("load", [(), ("--load",)])
def test_python_based_backends_are_known(load: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "python_based_backend"
    assert check.run([str(example / "models"), *load]) == 1
    assert "unable to find backend library for backend 'linear'" in capsys.readouterr().out
    assert check.run([str(example / "models"), f"--backend-directory={example / 'backends'}", *load]) == 0
    assert "double: ok (linear, version 1" in capsys.readouterr().out
