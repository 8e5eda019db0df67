"""Requests that fail while two servers behind HAProxy are restarted in turn, with `deploy/proxies/haproxy.cfg`.

    python -m bench.proxied_restarts [--restarts 20] [--requests-per-second 200]

Clients send REST, gRPC, gRPC streams, and sequences over each of them, through TLS. Every response is compared with
the right values; a request without one counts as failed, and no client tries again. A restart ends a server with
SIGTERM and starts its successor on the same port; the next one follows when HAProxy has seen it ready.
"""

import argparse
import http.client
import itertools
import json
import os
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient

from bench import models
from bench.peers import free_ports
from bench.proxy import Proxy
from bench.tls import certificate

_PATIENCE_S = 30.0
_START_S = 120.0
_SEQUENCE_LENGTH, _STREAM_LENGTH = 20, 10
_ids = itertools.count(1)


class Load:
    """Clients of all kinds, until the end of a `with` block."""

    def __init__(self, port: int, root: Path, requests_per_second: float) -> None:
        """`root` is the certificate of the proxy."""
        self._port, self._root = port, root
        self._context = ssl.create_default_context(cafile=str(root))
        self._context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        kinds: dict[Callable[[], Iterator[bool]], int] = {
            self._rest: 5,
            self._grpc: 5,
            self._stream: 2,
            self._rest_sequence: 1,
            self._grpc_sequence: 2,
            self._stream_sequence: 1,
        }
        self._threads = [
            threading.Thread(target=self._repeat, args=(kind,)) for kind, count in kinds.items() for _ in range(count)
        ]
        self._pause_s = len(self._threads) / requests_per_second
        self._is_over = threading.Event()
        self._began_s = time.monotonic()
        self.answered = Counter[str]()
        self.failures: list[str] = []

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _repeat(self, kind: Callable[[], Iterator[bool]]) -> None:
        """Run a client, which yields after each response whether it is right, again and again."""
        name = kind.__name__[1:]
        due_s = time.monotonic()
        while not self._is_over.is_set():
            try:
                for is_right in kind():
                    self._note(name, "" if is_right else "wrong values")
                    due_s = max(due_s + self._pause_s, time.monotonic() - 1)
                    time.sleep(max(0.0, due_s - time.monotonic()))
            except Exception as error:
                self._note(name, f"{type(error).__name__} {error}")
                time.sleep(self._pause_s)

    def _note(self, name: str, failure: str) -> None:
        self.answered[name] += not failure
        if failure:
            self.failures.append(f"{time.monotonic() - self._began_s:.1f} s {name}: {failure}")

    # --- what the clients send --------------------------------------------------------------------------------------

    def _rest(self) -> Iterator[bool]:
        rows = {name: np.ones((1, 16), np.float32) for name in ("INPUT0", "INPUT1")}
        connection = self._https()
        for _ in range(_STREAM_LENGTH):
            yield self._post(connection, "add_sub", rows)["OUTPUT0"] == [2.0] * 16
        connection.close()

    def _rest_sequence(self) -> Iterator[bool]:
        connection, number = self._https(), next(_ids)
        for place in range(_SEQUENCE_LENGTH):
            found = self._post(
                connection,
                "running_sum",
                {"INPUT": np.ones((1, 1), np.float32)},
                {"sequence-id": str(number)},
                **_sequence(number, place),
            )
            yield found["OUTPUT"] == [place + 1]
        connection.close()

    def _grpc(self) -> Iterator[bool]:
        with self._client() as client:
            for _ in range(_STREAM_LENGTH):
                yield _is_two(client.infer("add_sub", _add_sub(), client_timeout=_PATIENCE_S))

    def _grpc_sequence(self) -> Iterator[bool]:
        with self._client() as client:
            number = next(_ids)
            for place in range(_SEQUENCE_LENGTH):
                found = client.infer(
                    "running_sum", _one(), headers={"sequence-id": str(number)}, **_sequence(number, place)
                )
                yield found.as_numpy("OUTPUT").item() == place + 1

    def _stream(self) -> Iterator[bool]:
        with self._client() as client:
            for result in self._answers(client, "add_sub", [{"inputs": _add_sub()}] * _STREAM_LENGTH):
                yield _is_two(result)

    def _stream_sequence(self) -> Iterator[bool]:
        number = next(_ids)
        calls = [{"inputs": _one(), **_sequence(number, place)} for place in range(_SEQUENCE_LENGTH)]
        with self._client() as client:
            for place, result in enumerate(self._answers(client, "running_sum", calls)):
                yield result.as_numpy("OUTPUT").item() == place + 1

    # --- how they send it -------------------------------------------------------------------------------------------

    def _https(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("localhost", self._port, timeout=_PATIENCE_S, context=self._context)

    def _client(self) -> grpcclient.InferenceServerClient:
        # Without this option all channels of a process share one connection.
        channel = [("grpc.use_local_subchannel_pool", 1)]
        return grpcclient.InferenceServerClient(
            f"localhost:{self._port}", ssl=True, root_certificates=str(self._root), channel_args=channel
        )

    @staticmethod
    def _post(
        connection: http.client.HTTPSConnection,
        model: str,
        arrays: dict[str, np.ndarray[Any, Any]],
        headers: dict[str, str] | None = None,
        **parameters: object,
    ) -> dict[str, list[float]]:
        inputs = [
            {"name": name, "datatype": "FP32", "shape": array.shape, "data": array.tolist()}
            for name, array in arrays.items()
        ]
        body = json.dumps({"inputs": inputs, "parameters": parameters})
        connection.request("POST", f"/v2/models/{model}/infer", body, headers or {})
        response = connection.getresponse()
        text = response.read()
        if response.status != 200:
            raise RuntimeError(f"{response.status} {text[:200]!r}")
        return {output["name"]: output["data"] for output in json.loads(text)["outputs"]}

    @staticmethod
    def _answers(
        client: grpcclient.InferenceServerClient, model: str, calls: Sequence[dict[str, Any]]
    ) -> Iterator[grpcclient.InferResult]:
        responses: SimpleQueue[tuple[Any, Any]] = SimpleQueue()
        client.start_stream(lambda result, error: responses.put((result, error)))
        for call in calls:
            client.async_stream_infer(model, **call)
            result, error = responses.get(timeout=_PATIENCE_S)
            if error is not None:
                raise error
            yield result
        client.stop_stream()


def _sequence(number: int, place: int) -> dict[str, Any]:
    return {
        "sequence_id": number,
        "sequence_start": place == 0,
        "sequence_end": place == _SEQUENCE_LENGTH - 1,
    }


def _tensor(name: str, length: int) -> grpcclient.InferInput:
    given = grpcclient.InferInput(name, [1, length], "FP32")
    given.set_data_from_numpy(np.ones((1, length), np.float32))
    return given


def _add_sub() -> list[grpcclient.InferInput]:
    return [_tensor("INPUT0", 16), _tensor("INPUT1", 16)]


def _one() -> list[grpcclient.InferInput]:
    return [_tensor("INPUT", 1)]


def _is_two(result: grpcclient.InferResult) -> bool:
    return bool((result.as_numpy("OUTPUT0") == 2.0).all())


class Servers:
    """Two servers on ports of their own, and HAProxy before them."""

    def __init__(self, directory: Path, drain_s: float) -> None:
        self._directory, self._drain_s = directory, drain_s
        self._ports = free_ports(2)
        self._starts = itertools.count(1)
        models.write_repository(directory / "models", ("add_sub", "running_sum"))
        self._servers = [self._start(index) for index in range(2)]
        for server in self._servers:
            self._wait(server)
        self.certificate, key = certificate(directory)
        servers = [f"127.0.0.1:{port}" for port in self._ports]
        self._proxy = Proxy("haproxy", directory, self.certificate, key, servers)
        self.port = self._proxy.port

    def _start(self, index: int) -> "subprocess.Popen[bytes]":
        flags = [f"--http-port={self._ports[index]}", f"--drain-seconds={self._drain_s:g}"]
        own = ["--http-address=127.0.0.1", "--grpc-port=0", "--metrics-port=0", "--exit-timeout-secs=10"]
        command = [sys.executable, "-m", "naiad", "serve", str(self._directory / "models"), *flags, *own]
        with (self._directory / f"server{next(self._starts)}.log").open("wb") as output:
            return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=dict(os.environ))

    def _wait(self, server: "subprocess.Popen[bytes]") -> None:
        """Wait until a server is ready."""
        port, end_s = self._ports[self._servers.index(server)], time.monotonic() + _START_S
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE_S)
            try:
                connection.request("GET", "/v2/health/ready")
                if connection.getresponse().status == 200:
                    return
            except OSError:
                pass
            finally:
                connection.close()
            if server.poll() is not None or time.monotonic() > end_s:
                raise RuntimeError(f"the server on port {port} did not start")
            time.sleep(0.05)

    def restart(self, index: int, settle_s: float) -> int:
        """Replace a server; return the exit status of the old one."""
        self._servers[index].send_signal(signal.SIGTERM)
        status = self._servers[index].wait(_START_S)
        self._servers[index] = self._start(index)
        self._wait(self._servers[index])
        time.sleep(settle_s)
        return status

    def proxy_log(self) -> list[str]:
        """Return the changes of state that HAProxy has seen."""
        return self._proxy.log.read_text().splitlines()

    def stop(self) -> None:
        """End all processes."""
        self._proxy.stop()
        for process in self._servers:
            process.kill()
            process.wait()


def main() -> int:
    """Run the restarts, print what the clients saw as JSON, and return 1 when a request failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--restarts", type=int, default=20)
    parser.add_argument("--requests-per-second", type=float, default=200.0, help="of all clients together")
    parser.add_argument("--drain-seconds", type=float, default=4.0)
    parser.add_argument("--settle-seconds", type=float, default=3.0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as directory:
        servers = Servers(Path(directory), options.drain_seconds)
        try:
            load, took_s = _restart(servers, options)
        finally:
            servers.stop()
        proxy_log = servers.proxy_log()
    answered = sum(load.answered.values())
    seen = {
        "restarts": options.restarts,
        "seconds": round(took_s),
        "answered": answered,
        "requests_per_second": round(answered / took_s, 1),
        **load.answered,
        "failed": len(load.failures),
        "failures": load.failures[:30],
        "proxy_log": proxy_log if load.failures else [],
    }
    print(json.dumps(seen, indent=2))
    return 1 if load.failures else 0


def _restart(servers: Servers, options: argparse.Namespace) -> tuple[Load, float]:
    """Restart the servers in turn under load; return it and the seconds that this took."""
    time.sleep(options.settle_seconds)
    began_s = time.monotonic()
    with Load(servers.port, servers.certificate, options.requests_per_second) as load:
        for number in range(options.restarts):
            status = servers.restart(number % 2, options.settle_seconds)
            took_s = time.monotonic() - began_s
            print(f"{took_s:.1f} s restart {number + 1}: status {status}, {len(load.failures)} failed", flush=True)
            if status:
                load.failures.append(f"a server exited with {status}")
    return load, time.monotonic() - began_s


if __name__ == "__main__":
    sys.exit(main())
