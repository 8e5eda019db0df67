"""The cases of the benchmark. Servers that are compared take turns within every round, so that drift hits all."""

import contextlib
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from bench import adaptive, analyzer, connections, many, payloads, sequences, transfer
from bench.bare import BareSession
from bench.load import Shape, measure
from bench.payloads import GRPC, HTTP_BINARY, HTTP_JSON, Payload, Workload
from bench.peers import ALL, FastApi, Naiad, Running
from bench.process_tree import MIB, CpuMeter, memory, peak_rss, reset_peak
from bench.session import Session
from bench.shared import SharedTensors
from bench.stream import StreamClient, count_request, repeat_request
from bench.transfer_grpc import GrpcConnection
from naiad.backend.cores import usable_cores

GRPC_SHAPES = (Shape(1), Shape(2, 4), Shape(8, 4), Shape(32))
LARGE_ELEMENTS = 16 * MIB
"""Of four bytes each: 64 MiB."""
SHARED_ELEMENTS = 1 * MIB
"""Of four bytes each: 4 MiB."""
RESPONSES = 100
"""Of a decoupled model for each request."""
_SETTLE_S = 1.0


def shapes(session: Session, transport: str) -> list[Shape]:
    """Return the loads of the concurrencies that were asked for; over gRPC 32 comes as 8 x 4 and as 32 x 1."""
    wanted = session.options.concurrencies
    if transport == GRPC:
        return [shape for shape in GRPC_SHAPES if shape.concurrency in wanted]
    return [Shape(connections) for connections in wanted]


@dataclass(frozen=True)
class Entry:
    """A server under load with what it is sent."""

    server: Running
    payload: Payload
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What else distinguishes its rows."""


def checked(session: Session, server: Running, workload: Workload, transport: str) -> Entry:
    """Return the server with a request whose answer has been compared. Raises what `payloads.check` raises."""
    payload = payloads.make(workload, transport, session.work / "payloads")
    return Entry(server, payloads.check(payload, server.http_port, server.grpc_port))


def take_turns(session: Session, case: str, entries: Sequence[Entry], each: Sequence[Shape]) -> None:
    """Measure every load on every server, `rounds` times, the servers in turn."""
    options = session.options
    for shape in each:
        for _ in range(options.rounds):
            for entry in entries:
                found = measure(entry.server, entry.payload, shape, options.seconds, options.warm_up_s)
                session.add(case, _describe(entry, shape), found.as_dict())


def _describe(entry: Entry, shape: Shape) -> dict[str, Any]:
    return {
        **entry.extra,
        "server": entry.server.name,
        "model": entry.payload.workload.model,
        "transport": entry.payload.transport,
        "load": str(shape) if entry.payload.transport == GRPC else str(shape.connections),
        "concurrency": shape.concurrency,
    }


@contextlib.contextmanager
def serving(session: Session, repositories: Mapping[str, Path]) -> Iterator[dict[str, Running]]:
    """Start the servers that can be had, each with its repository."""
    with contextlib.ExitStack() as stack:
        running = {}
        for name in session.installed(*repositories):
            try:
                running[name] = stack.enter_context(session.serve(ALL[name](), repositories[name]))
            except RuntimeError as error:
                session.note(f"{name} did not start: {error}")
        yield running


def start(session: Session) -> None:
    """Time to ready with one small model, memory after that, CPU while nothing happens."""
    onnx, python = session.repository("add_sub"), session.repository("add_sub_py")
    plan = [("naiad", "add_sub", onnx), ("naiad", "add_sub_py", python), ("triton", "add_sub_py", python)]
    plan += [("fastapi", "add_sub", onnx), ("mlserver", "add_sub", onnx)]
    plan = [item for item in plan if session.installed(item[0])]
    for number in range(session.options.rounds + 1):
        for name, model, repository in plan:
            with session.serve(ALL[name](), repository) as server:
                if number == 0:  # so that every round finds the files in the page cache
                    continue
                time.sleep(_SETTLE_S)
                held = memory(server.process.pid)
                meter = CpuMeter(server.process.pid)
                time.sleep(session.options.idle_s)
                metrics = {
                    "startup_s": server.startup_s,
                    "rss_mib": held.rss / MIB,
                    "pss_mib": held.pss / MIB,
                    "idle_cpu_percent": meter.seconds() / session.options.idle_s * 100,
                }
                session.add("start", {"server": name, "model": model}, metrics)


def onnx(session: Session) -> None:
    """ONNX add/sub over both protocols."""
    with serving(session, {"naiad": session.repository("add_sub")}) as running:
        for transport in (HTTP_BINARY, GRPC):
            entries = [
                checked(session, server, payloads.add_sub("add_sub"), transport) for server in running.values()
            ]
            take_turns(session, "onnx", entries, shapes(session, transport))


def python(session: Session) -> None:
    """Add/sub as a Python model: naiad, real Triton, and MLServer where it speaks the protocol."""
    repository = session.repository("add_sub_py")
    with serving(session, {"naiad": repository, "triton": repository, "mlserver": repository}) as running:
        for transport, names in ((HTTP_BINARY, ("naiad", "triton")), (GRPC, ("naiad", "triton", "mlserver"))):
            entries = [
                checked(session, running[name], payloads.add_sub("add_sub_py"), transport)
                for name in names
                if name in running
            ]
            take_turns(session, "python", entries, shapes(session, transport))


def processes(session: Session) -> None:
    """ONNX add/sub on one server process and on one for each core; the load generator takes its part of the cores."""
    counts = sorted({1, max(2, usable_cores())})
    repository = session.repository("add_sub")
    with contextlib.ExitStack() as stack:
        running = {
            count: stack.enter_context(session.serve(Naiad(f"--processes={count}"), repository, f"naiad-{count}"))
            for count in counts
        }
        for transport in (HTTP_BINARY, HTTP_JSON, GRPC):
            entries = [
                replace(checked(session, server, payloads.add_sub("add_sub"), transport), extra={"processes": count})
                for count, server in running.items()
            ]
            each = [shape for shape in shapes(session, transport) if shape.connections > 1]
            take_turns(session, "processes", entries, each)


def ensemble(session: Session) -> None:
    """Three ONNX add/sub steps in an ensemble, beside one of them alone."""
    with session.serve(Naiad(), session.repository("add_sub", "chain")) as server:
        entries = [
            checked(session, server, workload, GRPC) for workload in (payloads.add_sub("add_sub"), payloads.chain())
        ]
        take_turns(session, "ensemble", entries, shapes(session, GRPC))


def bls(session: Session) -> None:
    """A Python model that calls a Python model, on naiad and real Triton; on naiad also one that calls ONNX."""
    with serving(
        session,
        {
            "naiad": session.repository("add_sub", "bls_onnx", "add_sub_py", "bls_py"),
            "triton": session.repository("add_sub_py", "bls_py"),
        },
    ) as running:
        models = {"naiad": ("bls_py", "bls_onnx"), "triton": ("bls_py",)}
        for transport in (HTTP_BINARY, GRPC):
            entries = [
                checked(session, server, payloads.add_sub(model), transport)
                for name, server in running.items()
                for model in models[name]
            ]
            take_turns(session, "bls", entries, shapes(session, transport))


def response_cache(session: Session) -> None:
    """A model of a millisecond, executed and answered from the cache."""
    values = np.arange(256, dtype=np.float32)
    with session.serve(Naiad("--cache-config=local,size=1000000"), session.repository("busy")) as server:
        entries = [
            checked(session, server, Workload(name, {"INPUT0": values}, {"OUTPUT0": np.roll(values, 60)}), transport)
            for transport in (HTTP_BINARY, GRPC)
            for name in ("busy", "busy_cached")
        ]
        take_turns(session, "response_cache", entries, [Shape(8)])


def json_body(session: Session) -> None:
    """Add/sub with JSON bodies, the only ones that FastAPI and MLServer take over HTTP."""
    repository = session.repository("add_sub")
    with serving(session, {"naiad": repository, "fastapi": repository, "mlserver": repository}) as running:
        workload = payloads.add_sub("add_sub")
        entries = [checked(session, server, workload, HTTP_JSON) for server in running.values()]
        take_turns(session, "json", entries, shapes(session, HTTP_JSON))


def image(session: Session) -> None:
    """ResNet-50 beside a bare loop around `session.run`: on one thread and on as many as there are cores."""
    for threads in sorted({1, usable_cores()}):
        repository = session.resnet_repository(threads)
        model = repository / "resnet50" / "1" / "model.onnx"
        workload = _image_workload(model)
        bare = BareSession(model, threads)
        try:
            _image_rounds(session, workload, repository, bare, threads)
        finally:
            bare.close()
    _image_alone(session)


def _image_rounds(session: Session, workload: Workload, repository: Path, bare: BareSession, threads: int) -> None:
    options = session.options
    with contextlib.ExitStack() as stack:
        naiad = stack.enter_context(session.serve(Naiad(), repository))
        # Two in flight: while one computes the next is received, as under any real load.
        plan = [(checked(session, naiad, workload, transport), Shape(2)) for transport in (HTTP_BINARY, GRPC)]
        json_entries = [checked(session, naiad, workload, HTTP_JSON)]
        if session.installed("fastapi"):
            fastapi = stack.enter_context(session.serve(FastApi(threads), repository))
            json_entries.append(checked(session, fastapi, workload, HTTP_JSON))
        alone = {"server": "bare", "model": "resnet50", "transport": "none", "concurrency": 1, "threads": threads}
        # The speed of a shared machine changes within seconds: short turns, compared with those next to them.
        for _ in range(_IMAGE_TURNS * options.rounds):
            session.add("image", {**alone, "load": "loop"}, bare.measure(options.seconds))
            for entry, shape in plan:
                found = measure(entry.server, entry.payload, shape, options.seconds, _A_FEW_IMAGES_S, is_whole=True)
                session.add("image", {**_describe(entry, shape), "threads": threads}, found.as_dict())
        # The figure is a small difference of large numbers: so in turns that are close to each other, and many, and
        # with whole requests only (wrk leaves one behind at the end, which is 100 ms of CPU).
        for _ in range(_JSON_TURNS * options.rounds):
            session.add("image", {**alone, "load": "loop, in turn with JSON"}, bare.measure(options.seconds / 2))
            for entry in json_entries:
                row = {**_describe(entry, Shape(1)), "threads": threads}
                session.add("image", row, _one_by_one(entry, options.seconds / 2))


_JSON_TURNS = 3
_IMAGE_TURNS = 5
"""An image takes 0.1 s, so that one more or less is 5 % of a turn."""
_A_FEW_IMAGES_S = 0.2
"""Enough to know how many there are in a turn; nothing has to warm up from one turn to the next."""


def _image_alone(session: Session) -> None:
    """The same JSON for a model that computes next to nothing: what the image costs, free of the other's noise."""
    values = _image()
    workload = Workload("image_mean", {"image": values}, {"mean": values.mean().reshape(1, 1)}, tolerance=1e-3)
    with session.serve(Naiad(), session.repository("image_mean")) as naiad:
        entry = checked(session, naiad, workload, HTTP_JSON)
        for _ in range(session.options.rounds):
            row = {**_describe(entry, Shape(1)), "threads": 1}
            session.add("image", row, _one_by_one(entry, session.options.seconds))


def _one_by_one(entry: Entry, seconds: float) -> dict[str, float]:
    """Send whole requests, one at a time, over a connection that is kept."""
    payload = entry.payload
    body = payload.body.read_bytes()
    times = []
    with socket.create_connection(("127.0.0.1", entry.server.http_port), timeout=60) as connection:
        transfer.round_trip(connection, payload.path, payload.headers, body)
        meter, began = CpuMeter(entry.server.process.pid), time.monotonic()
        while time.monotonic() - began < seconds:
            times.append(transfer.round_trip(connection, payload.path, payload.headers, body).total_s)
        cpu_s = meter.seconds()
    times.sort()
    return {
        "requests": len(times),
        "throughput": len(times) / sum(times),
        "p50_us": times[len(times) // 2] * 1e6,
        "p99_us": times[len(times) * 99 // 100] * 1e6,
        "cpu_us": cpu_s / len(times) * 1e6,
    }


def _image_workload(model: Path) -> Workload:
    values = _image()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"image": values})
    # Threads add in another order, so the last digits differ.
    return Workload("resnet50", {"image": values}, {"logits": logits}, tolerance=1e-3 * float(abs(logits).max()))


def _image() -> "np.ndarray[Any, np.dtype[np.float32]]":
    return np.random.default_rng(1).random((1, 3, 224, 224), dtype=np.float32)


def large(session: Session) -> None:
    """64 MiB through an ONNX identity, one request at a time; each round in a fresh server, for the memory's sake."""
    repository = session.repository("identity_64m")
    values = np.arange(LARGE_ELEMENTS, dtype=np.float32)
    workload = Workload("identity_64m", {"INPUT0": values}, {"OUTPUT0": values})
    for _ in range(session.options.rounds):
        for transport, run in ((HTTP_BINARY, _large_http), (GRPC, _large_grpc)):
            with session.serve(Naiad(), repository) as server:
                pid = server.process.pid
                before = memory(pid).rss
                reset_peak(pid)
                metrics = run(session, checked(session, server, workload, transport), values.nbytes)
                held = peak_rss(pid) - before
                row = {"server": "naiad", "model": "identity_64m", "transport": transport}
                session.add("large", row, {**metrics, "peak_tensors": held / values.nbytes, "peak_mib": held / MIB})


def _large_http(session: Session, entry: Entry, tensor_bytes: int) -> Mapping[str, float]:
    payload = entry.payload
    body = payload.body.read_bytes()
    with socket.create_connection(("127.0.0.1", entry.server.http_port), timeout=60) as connection:
        return _repeat(
            session, entry, tensor_bytes, lambda: transfer.round_trip(connection, payload.path, payload.headers, body)
        )


def _large_grpc(session: Session, entry: Entry, tensor_bytes: int) -> Mapping[str, float]:
    payload = entry.payload
    metrics = _call_grpc(session, entry, tensor_bytes)
    # h2load sends frames of 16 KiB, the smallest largest frame that HTTP/2 knows.
    options = session.options
    found = measure(entry.server, payload, Shape(1), options.seconds, options.warm_up_s)
    return {**metrics, "small_frames_megabytes_per_s": found.throughput * tensor_bytes / 1e6}


def shared_memory(session: Session) -> None:
    """4 MiB through an ONNX identity: sent, and in shared memory; one request at a time, the ways in turn."""
    repository = session.repository("identity_64m")
    values = np.arange(SHARED_ELEMENTS, dtype=np.float32)
    workload = Workload("identity_64m", {"INPUT0": values}, {"OUTPUT0": values})
    with session.serve(Naiad("--allow-client-shm=true"), repository) as server, SharedTensors(workload) as shared:
        shared.register(server.http_port)
        sent = [checked(session, server, workload, transport) for transport in (HTTP_BINARY, GRPC)]
        for _ in range(session.options.rounds):
            for entry in sent:
                run = _large_http if entry.payload.transport == HTTP_BINARY else _call_grpc
                row = {"server": "naiad", "transport": entry.payload.transport, "tensors": "sent"}
                session.add("shared_memory", row, run(session, entry, values.nbytes))
            for transport in (HTTP_BINARY, GRPC):
                for is_copied in (True, False):
                    ask = shared.asker(transport, server, is_copied=is_copied)
                    row = {"server": "naiad", "transport": transport, "tensors": "shared, " + _WAYS[is_copied]}
                    with ask as once:
                        found = _repeat(session, Entry(server, sent[0].payload), values.nbytes, once)
                    shared.check()
                    session.add("shared_memory", row, found)


_WAYS = {True: "the client copies in and out", False: "used in place"}


def _call_grpc(session: Session, entry: Entry, tensor_bytes: int) -> Mapping[str, float]:
    payload = entry.payload
    body = payload.body.read_bytes()
    with contextlib.closing(GrpcConnection(entry.server.grpc_port)) as connection:
        return _repeat(
            session,
            entry,
            tensor_bytes,
            lambda: connection.call(payload.path, payload.headers, body, payload.answer_bytes),
        )


def _repeat(
    session: Session, entry: Entry, tensor_bytes: int, once: Callable[[], transfer.Transfer]
) -> dict[str, float]:
    """Make round trips for as long as a measurement lasts."""
    once()
    times = []
    meter, began = CpuMeter(entry.server.process.pid), time.monotonic()
    while time.monotonic() - began < session.options.seconds:
        times.append(once())
    cpu_s = meter.seconds()
    megabytes = len(times) * tensor_bytes / 1e6
    return {
        "requests": len(times),
        "throughput": len(times) / sum(each.total_s for each in times),
        "p50_us": statistics.median(each.total_s for each in times) * 1e6,
        "megabytes_per_s": megabytes / sum(each.total_s for each in times),
        # Sending alone would leave out what the server has not read yet, so the model's time counts as well.
        "up_megabytes_per_s": megabytes / sum(each.up_s + each.wait_s for each in times),
        "down_megabytes_per_s": megabytes / sum(each.down_s for each in times),
        "cpu_us": cpu_s / len(times) * 1e6,
    }


def decoupled(session: Session) -> None:
    """Decoupled models, 100 responses a request, one stream, one request at a time."""
    python_only = session.repository("count_py")
    repositories = {"naiad": session.repository("count_py", "repeat"), "triton": python_only}
    plan = (
        ("naiad", "count_py", count_request),
        ("triton", "count_py", count_request),
        ("naiad", "repeat", repeat_request),
    )
    options = session.options
    with serving(session, repositories) as running:
        for _ in range(options.rounds):
            for name, model, make in plan:
                if name in running:
                    server = running[name]
                    with contextlib.closing(StreamClient(server.grpc_port)) as client:
                        message = make(model, RESPONSES)
                        client.run(message, RESPONSES, options.warm_up_s)
                        found = client.run(message, RESPONSES, options.seconds, server.process.pid)
                    session.add("decoupled", {"server": name, "model": model}, found.as_dict())


def live_sequences(session: Session) -> None:
    """A voice detector over 1,000 sequences of real speech at a time, and the same network without sequences."""
    chunk_count = 100 if session.options.seconds > 1 else 10
    spoken = sequences.speech(_SEQUENCES, chunk_count)
    repository = sequences.write_repository(session.work / "repositories" / "voice", _SEQUENCES)
    plan = (
        (sequences.PLAIN, _SEQUENCES),
        (sequences.OLDEST, _SEQUENCES),
        (sequences.DIRECT, sequences.MAX_BATCH_SIZE),
    )
    with session.serve(Naiad(), repository) as server:
        for _ in range(session.options.rounds):
            for model, live in plan:
                found = sequences.run(server.http_port, model, spoken, live=live, pid=server.process.pid)
                session.add("sequences", {"server": "naiad", "model": model, "live": live}, found.as_dict())


_SEQUENCES = 1000


def perf_analyzer(session: Session) -> None:
    """The real perf_analyzer over both protocols: the ONNX model on naiad, the Python model on naiad and Triton."""
    reason = analyzer.unavailable()
    if reason is not None:
        session.note(reason)
        return
    python_only = session.repository("add_sub_py")
    repositories = {"naiad": session.repository("add_sub", "add_sub_py"), "triton": python_only}
    with serving(session, repositories) as running:
        plan = [(running[name], model) for name, model in _ANALYZED if name in running]
        for transport in (HTTP_BINARY, GRPC):
            for server, model in plan:
                checked(session, server, payloads.add_sub(model), transport)
            for concurrency in session.options.concurrencies:
                for _ in range(session.options.rounds):
                    for server, model in plan:
                        _analyze(session, server, model, transport, concurrency)


_ANALYZED = (("naiad", "add_sub"), ("naiad", "add_sub_py"), ("triton", "add_sub_py"))


def _analyze(session: Session, server: Running, model: str, transport: str, concurrency: int) -> None:
    row = {"server": server.name, "model": model, "transport": transport, "concurrency": concurrency}
    # Three windows that together take as long as a run of the other tools.
    window_s = max(0.5, session.options.seconds / 3)
    try:
        found = analyzer.measure(server, model, transport, concurrency, window_s, session.work)
    except RuntimeError as error:
        session.note(f"{server.name}, {model}, {transport}, {concurrency}: {error}")
        return
    session.add("perf_analyzer", row, found)


def many_models(session: Session) -> None:
    """A thousand small models: start, index, and a request beside them."""
    if "naiad" not in session.options.servers:
        return
    options = session.options
    for found in many.measure(session.work / "many", rounds=options.rounds, seconds=options.seconds):
        session.add("many", {"server": "naiad", "models": many.MODELS}, found)


CASES: dict[str, Callable[[Session], None]] = {
    "start": start,
    "onnx": onnx,
    "python": python,
    "processes": processes,
    "ensemble": ensemble,
    "bls": bls,
    "response_cache": response_cache,
    "json": json_body,
    "image": image,
    "large": large,
    "shared_memory": shared_memory,
    "decoupled": decoupled,
    "sequences": live_sequences,
    "many": many_models,
    "adaptive": adaptive.run,
    "perf_analyzer": perf_analyzer,
    "idle_connections": connections.idle_connections,
    "tls": connections.tls,
}
