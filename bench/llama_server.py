"""The llamacpp backend against the library's own server: tokens per CPU second, and the time to the first token.

    python -m bench.llama_server SmolLM2-135M-Instruct.Q4_1.gguf
    python -m bench.llama_server smollm2.gguf --streams 1 4 --rounds 7 --threads 1

Both servers run at the same time, with the same threads, slots and window, and generate for the same prompts in turn,
in alternating order. The client is one for both: streamed completions of the OpenAI API, greedy. For each number of
streams the command prints the medians, and the medians of the quotients and differences of the rounds. Prompts differ
from round to round, so that no cache of prompts has them.
"""

import argparse
import asyncio
import json
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
from naiad.tools.process.own_server import LOOPBACK, ServeProcess

_START_S = 300.0
_ANSWER_S = 600.0
_WINDOW = 512
_CONFIG = """
backend: "llamacpp"
instance_group {{ count: {slots} kind: KIND_CPU }}
parameters {{ key: "context_tokens" value {{ string_value: "{window}" }} }}
parameters {{ key: "num_threads" value {{ string_value: "{threads}" }} }}
"""
# The settings of `naiad.backend.llamacpp.llama_server`, but for the listener.
_OWN_SERVER = """
import sys, time, xllamacpp
path, slots, window, threads = sys.argv[1], *map(int, sys.argv[2:])
settings = xllamacpp.CommonParams()
settings.model.path = path
settings.n_parallel = slots
settings.n_ctx = window * slots
settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = threads
settings.cache_ram_mib = 256
settings.fit_params = settings.ctx_shift = settings.warmup = settings.ui = False
settings.verbosity = 0
settings.hostnames = ["127.0.0.1"]
settings.port = 0
server = xllamacpp.Server(settings)
print(server.listening_address, flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class Round:
    """What one server has done in one round."""

    tokens_per_cpu_s: float
    first_ms: float
    """The mean over the streams."""


async def _stream(client: httpx.AsyncClient, url: str, prompt: str, count: int) -> tuple[float, int]:
    """Return the milliseconds to the first token and the number of tokens."""
    body = {
        "model": "smol",
        "prompt": prompt,
        "max_tokens": count,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began_s, first_ms, tokens = time.monotonic(), 0.0, 0
    async with client.stream("POST", f"{url}/v1/completions", json=body) as response:
        if response.status_code != 200:
            raise SystemExit(f"{url} answers {response.status_code}: {(await response.aread()).decode()[:500]}")
        async for line in response.aiter_lines():
            if not line.startswith("data:") or line.endswith("[DONE]"):
                continue
            chunk = json.loads(line.removeprefix("data:"))
            if not first_ms and any(choice.get("text") for choice in chunk["choices"]):
                first_ms = (time.monotonic() - began_s) * 1e3
            if chunk.get("usage"):
                tokens = chunk["usage"]["completion_tokens"]
    return first_ms, tokens


async def _measure(url: str, pid: int, prompts: Sequence[str], count: int) -> Round:
    meter = CpuMeter(pid)
    async with httpx.AsyncClient(timeout=_ANSWER_S) as client:
        found = await asyncio.gather(*(_stream(client, url, prompt, count) for prompt in prompts))
    tokens = sum(number for _, number in found)
    return Round(tokens / meter.seconds(), statistics.fmean(first for first, _ in found))


def _prompts(streams: int, number: int) -> list[str]:
    return [f"Chapter {number}.{stream}: the history of the lighthouse begins" for stream in range(streams)]


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4], help="streams at a time (1 4)")
    parser.add_argument("--tokens", type=int, default=128, help="new tokens of each stream (128)")
    parser.add_argument("--threads", type=int, default=1, help="that compute, of both servers (1)")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(argv)
    if not options.model.is_file():
        parser.error(f"{options.model} is not a file")
    return options


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print a table for each number of streams."""
    options = _arguments(argv)
    slots = max(options.streams)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "smol", "1")
        home.mkdir(parents=True)
        (home / "model.gguf").symlink_to(options.model.resolve())
        text = _CONFIG.format(slots=slots, window=_WINDOW, threads=options.threads)
        (home.parent / "config.pbtxt").write_text(text)
        naiad = ServeProcess([f"--model-repository={folder}", "--log-info=false", *LOOPBACK])
        words = [str(options.model), str(slots), str(_WINDOW), str(options.threads)]
        own = subprocess.Popen(
            [sys.executable, "-c", _OWN_SERVER, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert own.stdout is not None
            address = own.stdout.readline().strip()
            if not address:
                raise SystemExit("the library's own server did not start")
            servers = {
                "llama.cpp": (address if "://" in address else f"http://{address}", own.pid),
                "naiad": (naiad.wait_ready(_START_S).urls["http"], naiad.pid),
            }
            for streams in options.streams:
                _compare(servers, streams, options.tokens, options.rounds)
        finally:
            naiad.close()
            own.kill()
            own.wait()


def _compare(servers: dict[str, tuple[str, int]], streams: int, count: int, rounds: int) -> None:
    """Measure both servers in turn, and print what they have done."""
    found: dict[str, list[Round]] = {name: [] for name in servers}
    for number in range(-1, rounds):  # the first one warms both up
        names = list(servers) if number % 2 else list(reversed(servers))
        for name in names:
            one = asyncio.run(_measure(*servers[name], _prompts(streams, number), count))
            if number >= 0:
                found[name].append(one)
    print(f"{streams} streams of {count} tokens, {rounds} rounds")
    for name, each in found.items():
        per_cpu_s = statistics.median(one.tokens_per_cpu_s for one in each)
        first_ms = statistics.median(one.first_ms for one in each)
        print(f"  {name:10} {per_cpu_s:8.1f} tokens/CPU s, the first token after {first_ms:7.1f} ms")
    pairs = list(zip(found["naiad"], found["llama.cpp"], strict=True))
    share = statistics.median(a.tokens_per_cpu_s / b.tokens_per_cpu_s for a, b in pairs)
    later_ms = statistics.median(a.first_ms - b.first_ms for a, b in pairs)
    print(f"  {share:.1%} of the tokens per CPU second (goal: 97 %), {later_ms:+.1f} ms to the first (goal: 5 ms)")


if __name__ == "__main__":
    main()
