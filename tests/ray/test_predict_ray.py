"""`naiad predict --ray`: equal to a local run after kills, over an address, and where workers lack what they need."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from support.ports import free_port

SOURCE = Path(__file__).parents[2] / "src"
END_S = 400


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "naiad", "predict", *map(str, arguments)]


def run(*arguments: object, status: int = 0, **variables: str) -> str:
    environment = {**os.environ, **variables}
    ended = subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=END_S, check=False, env=environment
    )
    assert ended.returncode == status, ended.stderr[-3000:]
    return ended.stderr


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> Path:
    """40,000 rows, of which some fail: 625 requests, 2 s of one worker at 3 ms each."""
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    lines = [f"{row},{row % 7},r{row}" if row % 9999 else f"{row},two,r{row}" for row in range(40_000)]
    path.write_text("\n".join(["PAIR_0,PAIR_1,id", *lines]) + "\n")
    return path


@pytest.fixture(scope="module")
def expected(repository, rows) -> list[bytes]:
    run(repository, "ratio", "-i", rows, "-o", rows.with_name("local.csv"), "--key", "id", "-q", status=3)
    return contents(rows.with_name("local.csv"))


def contents(output: Path) -> list[bytes]:
    return [output.read_bytes(), output.with_name(f"{output.name}.rejected.jsonl").read_bytes()]


def workers_of(process: subprocess.Popen) -> list[psutil.Process]:
    found = []
    with contextlib.suppress(psutil.Error):
        for each in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "PartWorker" in " ".join(each.cmdline()):
                    found.append(each)
    return found


def wait_until(condition, process: subprocess.Popen) -> None:
    end_s = time.monotonic() + END_S
    while not condition():
        assert process.poll() is None, process.returncode
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_kills_leave_an_equal_output(repository, rows, expected, tmp_path) -> None:
    output = tmp_path / "out.csv"
    journal = tmp_path / "out.csv.partial" / "journal.jsonl"
    arguments = [repository, "ratio", "-i", rows, "-o", output, "--key", "id", "-q", "--ray", "local", "--workers", 2]

    def records() -> int:
        return journal.read_bytes().count(b"\n") if journal.exists() else 0

    process = subprocess.Popen(command(*arguments))
    wait_until(lambda: records() > 1 and workers_of(process), process)
    for worker in workers_of(process):
        worker.kill()
    before = records()
    wait_until(lambda: records() > before or output.exists(), process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    if not output.exists():
        run(*arguments, status=3)
    assert contents(output) == expected


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A Ray whose workers find no naiad: a package of this name that is not there hides it."""
    folder = tmp_path_factory.mktemp("hidden")
    (folder / "naiad").mkdir()
    (folder / "naiad" / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'naiad'\")\n")
    port = free_port()
    environment = {**os.environ, "PYTHONPATH": str(folder), "RAY_USAGE_STATS_ENABLED": "0"}
    environment["RAY_AUTH_MODE"] = "disabled"
    ray = str(Path(sys.executable).with_name("ray"))
    start = [ray, "start", "--head", "--block", f"--port={port}", "--num-cpus=2", "--include-dashboard=false"]
    start += [f"--temp-dir={tmp_path_factory.mktemp('r', numbered=False)}", f"--ray-client-server-port={free_port()}"]
    process = subprocess.Popen(start, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
    end_s = time.monotonic() + END_S
    while True:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            break
        assert process.poll() is None
        assert time.monotonic() < end_s
        time.sleep(0.1)
    yield f"127.0.0.1:{port}"
    children = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    for each in children:
        with contextlib.suppress(psutil.Error):
            each.kill()
    process.wait()


def test_workers_without_naiad_are_named(address, repository, rows, tmp_path) -> None:
    output = tmp_path / "out.csv"
    errors = run(
        repository, "ratio", "-i", rows, "-o", output, "-q", "--ray", address, status=1, RAY_AUTH_MODE="disabled"
    )
    assert "the workers of Ray have no naiad: ModuleNotFoundError: No module named 'naiad'" in errors
    assert not list(tmp_path.iterdir())


def test_an_address_without_ray_is_named(repository, rows, tmp_path) -> None:
    output = tmp_path / "out.csv"
    errors = run(
        repository, "ratio", "-i", rows, "-o", output, "-q", "--ray", f"ray://127.0.0.1:{free_port()}", status=1
    )
    assert "no Ray answers at 'ray://127.0.0.1" in errors
    assert not list(tmp_path.iterdir())


def test_a_model_that_does_not_load_is_named(repository, tmp_path) -> None:
    (tmp_path / "models" / "broken" / "1").mkdir(parents=True)
    (tmp_path / "models" / "broken" / "config.pbtxt").write_text((repository / "ratio" / "config.pbtxt").read_text())
    (tmp_path / "models" / "broken" / "1" / "model.py").write_text("import a_package_that_is_not_there\n")
    np.save(tmp_path / "in.npy", np.ones((4, 2), np.float32))
    errors = run(
        tmp_path / "models",
        "broken",
        "-i",
        tmp_path / "in.npy",
        "-o",
        tmp_path / "out.csv",
        "--ray",
        "local",
        status=1,
    )
    assert "a_package_that_is_not_there" in errors
    assert "worker on" in errors
