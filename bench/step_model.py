"""A decoder with continuous batching: streams of different lengths together against one by one.

    python -m bench.step_model                       6 layers of 512, 8 streams, 3 rounds
    python -m bench.step_model --heads 4 --rounds 5

Each round generates all streams one after the other and then all at a time, on one server, and compares their tokens.
The command prints tokens per CPU second of the server's process tree for both, and the quotient of the medians. The
answers have 96 to 192 tokens, the prompts 8 to 120.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx

from bench.decoder_models import DecoderShape, decoder_graph
from bench.process_tree import MIB, CpuMeter, memory
from naiad.client import Client
from naiad.tools.process.own_server import LOOPBACK, ServeProcess

_START_S = 120.0
_CONFIG = """
backend: "onnx_decoder"
instance_group {{ count: {streams} kind: KIND_CPU }}
parameters {{ key: "context_tokens" value {{ string_value: "512" }} }}
"""


def write_repository(root: Path, shape: DecoderShape, streams: int) -> None:
    """Write the model `steps`, which takes and makes token numbers."""
    (root / "steps" / "1").mkdir(parents=True)
    (root / "steps" / "config.pbtxt").write_text(_CONFIG.format(streams=streams))
    onnx.save(decoder_graph(shape), root / "steps" / "1" / "model.onnx")


def prompts_of(streams: int, vocabulary: int) -> list[tuple[list[int], int]]:
    """Return a prompt and the number of new tokens for each stream."""
    rng = np.random.default_rng(1)
    return [
        (rng.integers(0, vocabulary, int(prompt)).tolist(), int(count))
        for prompt, count in zip(
            np.linspace(8, 120, streams), np.roll(np.linspace(96, 192, streams), streams // 2), strict=True
        )
    ]


def _client(url: str) -> Client:
    """Return a client that waits for a server on a machine with other work."""
    return Client(url, connect_timeout_s=_START_S)


async def generate(client: Client, prompt: Sequence[int], count: int) -> list[int]:
    """Return the tokens of one stream, which come one by one."""
    inputs = {
        "input_ids": np.array(prompt, np.int64),
        "stream": np.array([True]),
        "sampling_parameters": np.array([json.dumps({"max_tokens": count}).encode()], np.object_),
    }
    found: list[int] = []
    async for result in client.infer_stream("steps", inputs):
        found += result["token_ids"].tolist()
    return found


async def slot_free_ms(url: str, streams: int) -> float:
    """Return the time from a cancellation to the first token of a request that waits for a slot.

    All slots are taken. It contains the rest of a step, the reading of a prompt and the way to the client.
    """
    async with _client(url) as client, _client(url) as waiting:
        taken = [asyncio.create_task(generate(client, [1] * 8, 400)) for _ in range(streams)]
        await asyncio.sleep(1)
        first = asyncio.create_task(generate(waiting, [2] * 8, 1))
        await asyncio.sleep(0.5)
        began_s = time.monotonic()
        taken[0].cancel()
        await first
        took_ms = (time.monotonic() - began_s) * 1e3
        for each in taken:
            each.cancel()
        await asyncio.gather(*taken, return_exceptions=True)
        return took_ms


async def measure(
    url: str, pid: int, asked: Sequence[tuple[list[int], int]], *, together: bool
) -> tuple[float, float, list[list[int]]]:
    """Return tokens per CPU second, tokens per second, and the tokens of all streams."""
    async with _client(url) as client:
        meter, began_s = CpuMeter(pid), time.monotonic()
        if together:
            found = await asyncio.gather(*(generate(client, *each) for each in asked))
        else:
            found = [await generate(client, *each) for each in asked]
        seconds, cpu_s = time.monotonic() - began_s, meter.seconds()
    total = sum(map(len, found))
    return total / cpu_s, total / seconds, list(found)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print a line for each way, and the quotient."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--heads", type=int, default=8, help="of 64 numbers each")
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(argv)
    shape = DecoderShape(options.layers, options.heads, 64, options.vocabulary, 512)
    asked = prompts_of(options.streams, options.vocabulary)
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        write_repository(Path(folder), shape, options.streams)
        server = ServeProcess([f"--model-repository={folder}", "--log-info=false", *LOOPBACK])
        try:
            url = f"grpc://{dict(server.wait_ready(_START_S).urls)['grpc']}"
            expected = asyncio.run(measure(url, server.pid, asked, together=False))[2]  # warms the server up
            for _ in range(options.rounds):
                for together in (False, True):
                    per_cpu_s, per_s, tokens = asyncio.run(measure(url, server.pid, asked, together=together))
                    found[together].append((per_cpu_s, per_s))
                    if tokens != expected:
                        raise SystemExit("the tokens of the streams depend on what runs beside them")
            freed_ms = [asyncio.run(slot_free_ms(url, options.streams)) for _ in range(5)]
            held = memory(server.pid).rss / MIB
        finally:
            server.close()
    medians = {way: [statistics.median(each) for each in zip(*rows, strict=True)] for way, rows in found.items()}
    for way, name in ((False, "one by one"), (True, "together")):
        print(f"{name:12} {medians[way][0]:8.0f} tokens/CPU s {medians[way][1]:8.0f} tokens/s")
    print(f"{medians[True][0] / medians[False][0]:.2f} times the tokens per CPU second; tokens equal; {held:.0f} MiB")
    print(f"a cancelled slot has given another stream its first token after {statistics.median(freed_ms):.0f} ms")


if __name__ == "__main__":
    main()
