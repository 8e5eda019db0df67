"""Many sequences of real speech at a time through a voice detector, every single answer compared.

    python -m bench.sequences [SEQUENCES CHUNKS]

Silero has a state from chunk to chunk. The server keeps it in the sequence batcher, or the client sends it with
every chunk and gets it back: the same network, the plain way. A lost or mixed state makes them wrong by up to 0.97.
"""

import json
import selectors
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from bench.peers import Naiad
from bench.process_tree import CpuMeter
from naiad.tools.demo import voice, voice_model
from naiad.tools.demo.voice_model import CHUNK_SAMPLES, CONTEXT_SAMPLES, RATE_HZ, STATE_DIMS

Array = np.ndarray[Any, Any]

CONNECTIONS = 32
MAX_BATCH_SIZE = 32
TOLERANCE = 1e-4
"""Rows of a batch do not change each other by more than 2e-6."""
_CONTEXT_BYTES = 4 * CONTEXT_SAMPLES
_STATE_BYTES = 4 * STATE_DIMS[0] * STATE_DIMS[1]
_READ_BYTES = 1 << 16
_TIMEOUT_S = 60.0
OLDEST, DIRECT, PLAIN = "voice_oldest", "voice_direct", "voice_plain"


@dataclass(frozen=True)
class Speech:
    """Chunks f32[sequences, chunks, 512] and the probabilities f32[sequences, chunks] that are right."""

    chunks: Array
    expected: Array


@dataclass
class Heard:
    """What a run found."""

    chunks: int = 0
    wrong: int = 0
    worst: float = 0.0
    """The largest difference from what is right."""
    wall_s: float = 0.0
    cpu_us: float = 0.0
    """Of the server for each chunk."""

    def as_dict(self) -> dict[str, float]:
        """Return the metrics of a row."""
        throughput = self.chunks / self.wall_s
        return {"chunks": self.chunks, "wrong": self.wrong, "throughput": throughput, "cpu_us": self.cpu_us}


def write_repository(root: Path, candidates: int) -> Path:
    """Write the network three times: as sequences with either strategy, and plain."""
    root.mkdir(parents=True, exist_ok=True)
    oldest = f"oldest {{ max_candidate_sequences: {candidates} }}"
    voice_model.write_sequence_model(root, OLDEST, oldest, MAX_BATCH_SIZE)
    voice_model.write_sequence_model(root, DIRECT, "direct { }", MAX_BATCH_SIZE)
    voice_model.write_plain_model(root, PLAIN, MAX_BATCH_SIZE)
    return root


def speech(sequence_count: int, chunk_count: int) -> Speech:
    """Return different stretches of real speech, with what onnxruntime says to them by itself."""
    spoken = np.concatenate([voice.read_wav(path, RATE_HZ) for path in voice.speech()])
    need = chunk_count * CHUNK_SAMPLES
    offsets = np.arange(sequence_count) * 9973 % len(spoken)
    looped = np.resize(spoken, len(spoken) + need)
    chunks = np.stack([looped[at : at + need].reshape(chunk_count, CHUNK_SAMPLES) for at in offsets])
    session = onnxruntime.InferenceSession(voice_model.batch_first(voice_model.network()))
    context = np.zeros((sequence_count, CONTEXT_SAMPLES), np.float32)
    state = np.zeros((sequence_count, *STATE_DIMS), np.float32)
    expected = np.empty((sequence_count, chunk_count), np.float32)
    for number in range(chunk_count):
        given = {"chunk": chunks[:, number], "context": context, "state_in": state}
        prob, context, state = session.run(None, given)
        expected[:, number] = prob[:, 0]
    return Speech(chunks, expected)


class _Connection:
    """One connection with one request in flight, and the sequences that are its own."""

    def __init__(self, port: int, model: str, steps: Iterator[tuple[int, int]], spoken: Speech) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._steps = steps
        self._spoken = spoken
        self._body = _plain_body if model == PLAIN else _sequence_body
        self._path = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: bench\r\n".encode()
        self._states: dict[int, bytes] = {}
        self._keeps_states = model == PLAIN
        self._received = bytearray()
        self._step = (0, 0)

    def send(self) -> bool:
        """Send the next chunk; False when there is none."""
        step = next(self._steps, None)
        if step is None:
            return False
        sequence, number = self._step = step
        is_last = number == self._spoken.chunks.shape[1] - 1
        header, states = self._body(sequence, number == 0, is_last, self._states)
        head = b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
        chunk = self._spoken.chunks[sequence, number].tobytes()
        lengths = head % (len(header), len(header) + len(chunk) + len(states))
        self.socket.sendall(b"".join((self._path, lengths, header, chunk, states)))
        return True

    def receive(self) -> float | None:
        """Read once; return how far the answer is from what is right, None until it is complete."""
        received = self._received
        data = self.socket.recv(_READ_BYTES)
        if not data:
            raise RuntimeError("the server closed the connection")
        received += data
        end = received.find(b"\r\n\r\n")
        if end < 0:
            return None
        head = bytes(received[:end]).lower()
        length = int(head.split(b"\r\ncontent-length:")[1].split(b"\r\n")[0])
        if len(received) < end + 4 + length:
            return None
        body = bytes(received[end + 4 :])
        received.clear()
        if not head.startswith(b"http/1.1 200"):
            raise RuntimeError(f"chunk {self._step} was answered with {body.decode(errors='replace')}")
        return self._compare(body)

    def _compare(self, body: bytes) -> float:
        sequence, number = self._step
        if self._keeps_states:
            self._states[sequence] = body[-(_CONTEXT_BYTES + _STATE_BYTES) :]
            body = body[: -(_CONTEXT_BYTES + _STATE_BYTES)]
        prob = np.frombuffer(body[-4:], np.float32)[0]
        return float(abs(prob - self._spoken.expected[sequence, number]))


_CHUNK = {
    "name": "chunk",
    "datatype": "FP32",
    "shape": [1, CHUNK_SAMPLES],
    "parameters": {"binary_data_size": 4 * CHUNK_SAMPLES},
}


def _sequence_body(sequence: int, starts: bool, ends: bool, states: dict[int, bytes]) -> tuple[bytes, bytes]:
    parameters = {"sequence_id": sequence + 1, "sequence_start": starts, "sequence_end": ends}
    return json.dumps({"inputs": [_CHUNK], "parameters": {**parameters, "binary_data_output": True}}).encode(), b""


def _plain_body(sequence: int, starts: bool, ends: bool, states: dict[int, bytes]) -> tuple[bytes, bytes]:
    return _PLAIN_HEADER, bytes(_CONTEXT_BYTES + _STATE_BYTES) if starts else states[sequence]


def _plain_header() -> bytes:
    inputs = [
        _CHUNK,
        *(
            {"name": name, "datatype": "FP32", "shape": [1, *dims], "parameters": {"binary_data_size": size}}
            for name, dims, size in (
                ("context", (CONTEXT_SAMPLES,), _CONTEXT_BYTES),
                ("state_in", STATE_DIMS, _STATE_BYTES),
            )
        ),
    ]
    outputs = [{"name": name, "parameters": {"binary_data": True}} for name in ("prob", "context_out", "state_out")]
    return json.dumps({"inputs": inputs, "outputs": outputs}).encode()


_PLAIN_HEADER = _plain_header()


def run(port: int, model: str, spoken: Speech, *, live: int, pid: int = 0) -> Heard:
    """Send all chunks, `live` sequences at a time; `pid` is the server's, 0 to leave its CPU time out.

    Raises RuntimeError when the server refuses a chunk.
    """
    steps = [_own_steps(number, spoken.chunks.shape, live) for number in range(CONNECTIONS)]
    connections = [_Connection(port, model, own, spoken) for own in steps]
    heard = Heard()
    meter = CpuMeter(pid) if pid else None
    began = time.perf_counter()
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            if connection.send():
                selector.register(connection.socket, selectors.EVENT_READ, connection)
        while selector.get_map():
            events = selector.select(_TIMEOUT_S)
            if not events:
                raise RuntimeError(f"no answer within {_TIMEOUT_S:g} s after {heard.chunks} chunks")
            for key, _ in events:
                _take(heard, key.data, lambda: selector.unregister(key.fileobj))  # noqa: B023 - called at once
    heard.wall_s = time.perf_counter() - began
    if meter is not None:
        heard.cpu_us = meter.seconds() / heard.chunks * 1e6
    for connection in connections:
        connection.socket.close()
    return heard


def _take(heard: Heard, connection: _Connection, on_end: Callable[[], object]) -> None:
    difference = connection.receive()
    if difference is None:
        return
    heard.chunks += 1
    heard.wrong += not difference <= TOLERANCE
    heard.worst = max(heard.worst, difference)
    if not connection.send():
        on_end()


def _own_steps(connection: int, shape: Sequence[int], live: int) -> Iterator[tuple[int, int]]:
    """Yield (sequence, chunk) for a connection: some of its sequences at a time, a chunk of each in turn."""
    sequences = range(connection, shape[0], CONNECTIONS)
    at_a_time = max(1, live // CONNECTIONS)
    for begin in range(0, len(sequences), at_a_time):
        for number in range(shape[1]):
            for sequence in sequences[begin : begin + at_a_time]:
                yield sequence, number


def main(sequence_count: int = 1000, chunk_count: int = 100) -> None:
    """Measure alone, without the rest of the benchmark."""
    spoken = speech(sequence_count, chunk_count)
    with tempfile.TemporaryDirectory() as folder:
        repository = write_repository(Path(folder) / "models", sequence_count)
        server = Naiad().start(repository, Path(folder) / "naiad")
        try:
            for model, live in ((PLAIN, sequence_count), (OLDEST, sequence_count), (DIRECT, MAX_BATCH_SIZE)):
                heard = run(server.http_port, model, spoken, live=live, pid=server.process.pid)
                print(model, *(f"{name} {value:.5g}" for name, value in heard.as_dict().items()), heard.worst)
        finally:
            server.stop()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
