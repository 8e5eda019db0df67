"""Unix sockets and IPv6: where a server can listen besides IPv4, and what is said when it cannot."""

import os
import socket
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from naiad.core.errors import InferError
from naiad.server.ports.listener import Address, bind
from support.model_repository import write_identity
from support.server_process import ServerProcess

StartServer = Callable[..., ServerProcess]
ROWS = np.arange(4, dtype=np.float32).reshape(1, 4)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_identity(root)
    return root


def grpc_answer(url: str) -> np.ndarray:
    with triton_grpc.InferenceServerClient(url) as client:
        tensor = triton_grpc.InferInput("INPUT0", ROWS.shape, "FP32")
        tensor.set_data_from_numpy(ROWS)
        return client.infer("identity", [tensor], client_timeout=60).as_numpy("OUTPUT0")


def curl_status(*arguments: str) -> str:
    command = ["curl", "-sS", "-m", "20", "-o", "/dev/null", "-w", "%{http_code}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout


def unix(path: Path, flag: str = "http", **options: object) -> Address:
    return Address(("HTTPService",), flag, f"unix:{path}", 0, **options)


# --- Unix sockets: the server


def test_stock_clients_over_unix_sockets(models: Path, start_server: StartServer, tmp_path: Path) -> None:
    http, rpc = tmp_path / "http.sock", tmp_path / "grpc.sock"
    server = start_server(models, f"--http-address=unix:{http}", f"--grpc-address=unix:{rpc}")
    server.wait_started()
    assert (server.http_url, server.grpc_url) == (f"unix:{http}", f"unix:{rpc}")
    assert server.metrics_url.startswith("127.0.0.1:")
    assert np.array_equal(grpc_answer(f"unix:{rpc}"), ROWS)
    for mode in ("--http1.1", "--http2-prior-knowledge"):
        assert curl_status(mode, "--unix-socket", str(http), "http://localhost/v2/health/ready") == "200"
    server.signal()
    assert server.wait_exit() == 0
    assert not http.exists()
    assert not rpc.exists()


def test_one_unix_socket_for_both(models: Path, start_server: StartServer, tmp_path: Path) -> None:
    path = tmp_path / "naiad.sock"
    server = start_server(
        models, f"--http-address=unix:{path}", f"--grpc-address=unix://{path}", "--unix-socket-mode=660"
    )
    server.wait_started()
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    assert np.array_equal(grpc_answer(f"unix:{path}"), ROWS)
    assert curl_status("--unix-socket", str(path), "http://localhost/v2/health/ready") == "200"


def test_next_server_takes_over_socket_of_killed_one(models: Path, start_server: StartServer, tmp_path: Path) -> None:
    path = tmp_path / "naiad.sock"
    first = start_server(models, f"--http-address=unix:{path}")
    first.wait_started()
    first.process.kill()
    first.wait_exit()
    assert path.exists()
    second = start_server(models, f"--http-address=unix:{path}")
    second.wait_started()
    assert "a socket without a listening server" in second.log_text()
    assert curl_status("--unix-socket", str(path), "http://localhost/v2/health/live") == "200"


def test_second_server_on_socket_in_use_says_so(models: Path, start_server: StartServer, tmp_path: Path) -> None:
    path = tmp_path / "naiad.sock"
    first = start_server(models, f"--http-address=unix:{path}")
    first.wait_started()
    second = start_server(models, f"--http-address=unix:{path}")
    assert second.wait_exit() == 1
    assert f"failed to start HTTPService at --http-address unix:{path}" in second.log_text()
    assert "another process listens there" in second.log_text()
    assert curl_status("--unix-socket", str(path), "http://localhost/v2/health/live") == "200"


# --- Unix sockets: the file


def test_socket_is_private_with_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        listener = bind(unix(tmp_path / "a"))
        mode = stat.S_IMODE((tmp_path / "a").stat().st_mode)
    finally:
        os.umask(before)
    listener.close()
    assert mode == 0o600


def test_umask_does_not_change_requested_mode(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        listener = bind(unix(tmp_path / "a", unix_mode=0o666))
        mode = stat.S_IMODE((tmp_path / "a").stat().st_mode)
    finally:
        os.umask(before)
    listener.close()
    assert mode == 0o666


def test_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    with pytest.raises(InferError, match="the file is not a socket"):
        bind(unix(tmp_path / "precious"))
    assert (tmp_path / "precious").read_text() == "data"


def test_directory_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(InferError, match=r"--grpc-address unix:.*/none/a: No such file"):
        bind(unix(tmp_path / "none" / "a", "grpc"))


def test_closing_leaves_the_socket_of_a_successor_alone(tmp_path: Path) -> None:
    path = tmp_path / "a"
    listener = bind(unix(path))
    path.unlink()
    with socket.socket(socket.AF_UNIX) as successor:
        successor.bind(str(path))
        listener.close()
        assert path.exists()


def test_closing_twice_is_harmless(tmp_path: Path) -> None:
    listener = bind(unix(tmp_path / "a"))
    listener.close()
    listener.close()
    assert not (tmp_path / "a").exists()


# --- IPv6


@needs_ipv6
@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_stock_clients_over_ipv6(models: Path, start_server: StartServer, host: str) -> None:
    server = start_server(models, f"--http-address={host}", f"--grpc-address={host}", "--metrics-address=127.0.0.1")
    server.wait_started()
    assert server.http_url.startswith("[::1]:")
    assert np.array_equal(grpc_answer(server.grpc_url), ROWS)
    port = server.http_url.rpartition(":")[2]
    with triton_http.InferenceServerClient(f"[::1]:{port}") as client:
        assert client.is_server_live()
    with grpc.insecure_channel(f"ipv6:{server.grpc_url}") as channel:
        grpc.channel_ready_future(channel).result(60)


@needs_ipv6
def test_any_address_of_ipv6_takes_ipv4_too(models: Path, start_server: StartServer) -> None:
    server = start_server(models, "--http-address=::", "--grpc-address=::")
    server.wait_started()
    port = server.http_url.rpartition(":")[2]
    for host in ("127.0.0.1", "[::1]"):
        assert curl_status("-g", f"http://{host}:{port}/v2/health/live") == "200"


@needs_ipv6
def test_scope_of_peer_is_no_part_of_name() -> None:
    listener = bind(Address(("HTTPService",), "http", "::1", 0))
    port = listener.socket.getsockname()[1]
    assert listener.name == f"[::1]:{port}"
    listener.close()


# --- what is wrong, in clear text


def test_port_in_use_names_flag_and_remedies() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(InferError) as caught:
            bind(Address(("GRPCInferenceService",), "grpc", "127.0.0.1", port))
        assert f"--grpc-address 127.0.0.1 --grpc-port {port}: Address already in use" in caught.value.message
        assert "--reuse-grpc-port=true to both" in caught.value.message
        with pytest.raises(InferError) as caught:
            bind(Address(("Metrics Service",), "metrics", "127.0.0.1", port))
        assert "reuse" not in caught.value.message


def test_address_of_another_machine() -> None:
    with pytest.raises(InferError, match="this machine does not have the address"):
        bind(Address(("HTTPService",), "http", "192.0.2.1", 0))


def test_unknown_name() -> None:
    with pytest.raises(InferError, match=r"--http-address no\.such\.invalid cannot be resolved"):
        bind(Address(("HTTPService",), "http", "no.such.invalid", 0))


def test_port_that_both_agree_to_share() -> None:
    first = bind(Address(("HTTPService",), "http", "127.0.0.1", 0, reuse_port=True))
    port = first.socket.getsockname()[1]
    second = bind(Address(("HTTPService",), "http", "127.0.0.1", port, reuse_port=True))
    assert second.name == first.name
    first.close()
    second.close()
