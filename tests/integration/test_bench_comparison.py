"""The flags of `bench.comparison`: Triton with the ONNX backend of an owner, naiad with processes, one load."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import onnxruntime
import pytest
from bench import comparison, peers, report
from bench.peers import Naiad, Triton

# Older packages of ONNX Runtime have no library beside their extension module.
LIBRARIES = list(Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so*"))
FACTS = dict.fromkeys(("date", "commit", "cores", "cpu", "memory_gib", "system", "kernel", "python"), "-")
FIGURES = {
    "throughput": 100.0,
    "p50_us": 10.0,
    "p99_us": 20.0,
    "cpu_us": 5.0,
    "rss_mib": 1.0,
    "pss_mib": 1.0,
    "client_cores": 0.1,
}


@pytest.fixture
def backends(tmp_path: Path) -> Path:
    """A directory for `--triton-backends`; its library is that of this environment's ONNX Runtime."""
    directory = tmp_path / "given"
    (directory / "onnxruntime").mkdir(parents=True)
    (directory / "onnxruntime" / "libtriton_onnxruntime.so").touch()
    for library in LIBRARIES:
        (directory / "onnxruntime" / "libonnxruntime.so.1").symlink_to(library)
    return directory


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--triton-backends", "/nowhere"], "/nowhere has no file onnxruntime/libtriton_onnxruntime.so"),
        (["--cases", "onnx"], "onnx needs --triton-backends"),
        (["--cases", "python,bsl"], "'bsl' is not one of python, bls, json, onnx"),
        (["--processes", "0"], "at least 1"),
    ],
)
def test_refused_flags_say_what_is_wanted(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        comparison.parse(flags)
    assert refused.value.code == 2
    assert message in capsys.readouterr().err


def test_onnx_is_measured_where_backends_are_given(backends: Path) -> None:
    assert comparison.parse([]).cases == ["python", "bls", "json"]
    options = comparison.parse(["--triton-backends", str(backends)])
    assert options.cases == ["python", "bls", "json", "onnx"]
    triton = options.peers["triton"]()
    assert triton.backends == backends
    assert triton.onnxruntime_version() == (onnxruntime.__version__ if LIBRARIES else "")
    assert Triton().onnxruntime_version() == ""


@pytest.mark.parametrize("given", [False, True])
def test_triton_gets_both_backends(
    given: bool, backends: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "PEERS_DIR", tmp_path)
    home = tmp_path / "triton" / "lib" / "python3" / "site-packages" / "pytriton" / "tritonserver"
    (home / "backends" / "python").mkdir(parents=True)
    command, _ = Triton(backends if given else None).command(tmp_path / "models", tmp_path, [1, 2, 3])
    (flag,) = (each for each in command if each.startswith("--backend-directory="))
    found = {each.name: each.resolve() for each in Path(flag.partition("=")[2]).iterdir()}
    expected = {"python": home / "backends" / "python"}
    assert found == expected | ({"onnxruntime": backends / "onnxruntime"} if given else {})


def _loads(flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> comparison.Results:
    """Measure the ONNX case with servers and load generators that only count."""

    @contextlib.contextmanager
    def serving(case: object, makers: comparison.Peers, *rest: object) -> Iterator[dict[str, SimpleNamespace]]:
        yield {name: SimpleNamespace(name=make().name, http_port=0, grpc_port=0) for name, make in makers.items()}

    monkeypatch.setattr(comparison, "serving", serving)
    monkeypatch.setattr(comparison.payloads, "check", lambda payload, *ports: payload)
    monkeypatch.setattr(comparison, "measure", lambda *load: SimpleNamespace(as_dict=lambda: FIGURES))
    results = comparison.Results()
    comparison.run("onnx", comparison.CASES["onnx"], results, tmp_path, comparison.parse(flags))
    return results


def test_onnx_case_loads_both_servers_by_all_transports(
    backends: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = _loads(["--triton-backends", str(backends)], tmp_path, monkeypatch)
    assert {row["server"] for row in results.rows} == {"naiad", "triton"}
    assert len(results.rows) == 2 * (3 + 4 + 3)
    assert {len(row["rounds"]) for row in results.rows} == {3}


def test_two_processes_have_their_own_row(backends: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["--triton-backends", str(backends), "--only", "gRPC 1 x 1", "--processes", "2", "--rounds", "1"]
    results = _loads(flags, tmp_path, monkeypatch)
    assert [row["server"] for row in results.rows] == ["naiad", "triton", "naiad, 2 processes"]
    table = report.markdown(
        {"facts": FACTS | {"versions": {}}, "options": {"rounds": 1, "seconds": 1}, "notes": [], "rows": results.rows}
    )
    assert "| ONNX add/sub, gRPC | naiad, 2 processes | 1 x 1 | 1.00 | 1.00 | 1.00 |" in table


def test_naiad_with_processes_is_started_so(tmp_path: Path) -> None:
    naiad = comparison.parse(["--processes", "2"]).peers["naiad, 2 processes"]()
    assert isinstance(naiad, Naiad)
    assert naiad.command(tmp_path, tmp_path, [1, 2, 3])[0][-2:] == ["--processes", "2"]
