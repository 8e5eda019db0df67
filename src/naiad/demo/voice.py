"""Streams speech to the server, chunk by chunk as from a microphone, and prints the segments of speech."""

import queue
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from naiad.demo import sound, voice_model
from naiad.demo.packages import SILERO_EXAMPLE, fetch
from naiad.demo.server import Settings, serving
from naiad.demo.voice_model import CHUNK_SAMPLES, RATE_HZ

MODEL = "voice"
RESPONSE_TIMEOUT_S = 30.0
_CHUNK_S = CHUNK_SAMPLES / RATE_HZ
_ALSA = Path("/usr/share/sounds/alsa")
_ALSA_NAMES = ("Front_Center.wav", "Rear_Left.wav", "Side_Right.wav")


@dataclass(frozen=True, slots=True)
class SoundResult:
    """The server's results for one sound."""

    name: str
    probabilities: Sequence[float]
    chunk_ms: float
    """Mean time from a chunk to its response."""


def run(settings: Settings, console: Console, wav: Path | None = None) -> int:
    """Run the demonstration over `wav` or available speech files; return the exit code.

    Raises RuntimeError if the model or speech is not available, ValueError for a file that is not a WAV file.
    """
    console.print("[bold]Model[/bold] from a PyPI package (downloaded once, kept in the cache):")
    voice_model.network(lambda text: console.print(f"  {text}"))
    paths = [wav] if wav is not None else speech()
    sounds = [(path.name, sound.read_wav(path, RATE_HZ)) for path in paths]
    settings.repository.mkdir(parents=True, exist_ok=True)
    home = voice_model.write_sequence_model(settings.repository, MODEL, "oldest { max_candidate_sequences: 64 }")
    with serving(home.parent, settings, console, MODEL) as running:
        heard = stream(running.grpc_url, sounds)
        console.print(_table(heard))
    return 0


def speech() -> list[Path]:
    """Return files of real speech: from Debian's alsa-utils, otherwise from Silero's source."""
    found = [_ALSA / name for name in _ALSA_NAMES if (_ALSA / name).is_file()]
    return found or list(fetch(SILERO_EXAMPLE).values())


def stream(grpc_url: str, sounds: Sequence[tuple[str, sound.Samples]]) -> list[SoundResult]:
    """Send the sounds as parallel sequences over one gRPC stream, a chunk of each in turn.

    Raises RuntimeError with the server's message.
    """
    import tritonclient.grpc as api

    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    cut = [sound.chunks(samples, CHUNK_SAMPLES) for _, samples in sounds]
    probabilities: list[list[float]] = [[] for _ in sounds]
    began = time.perf_counter()
    with api.InferenceServerClient(grpc_url) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number in range(max(map(len, cut))):
            asked = [index for index, pieces in enumerate(cut) if number < len(pieces)]
            for index in asked:
                _send(client, api, cut[index], index, number)
            for _ in asked:
                result, error = _next(answers)
                if error is not None:
                    raise RuntimeError(f"the server rejected a chunk: {error}")
                index = int(result.get_response().id)
                probabilities[index].append(float(result.as_numpy("prob").item()))
        client.stop_stream()
    chunk_ms = (time.perf_counter() - began) * 1e3 / max(1, sum(map(len, cut)))
    return [SoundResult(name, found, chunk_ms) for (name, _), found in zip(sounds, probabilities, strict=True)]


def _next(answers: "queue.Queue[tuple[Any, Any]]") -> tuple[Any, Any]:
    try:
        return answers.get(timeout=RESPONSE_TIMEOUT_S)
    except queue.Empty:
        raise RuntimeError(f"the server did not respond to a chunk within {RESPONSE_TIMEOUT_S:g} s") from None


def _send(client: Any, api: Any, pieces: sound.Samples, index: int, number: int) -> None:
    tensor = api.InferInput("chunk", [1, CHUNK_SAMPLES], "FP32")
    tensor.set_data_from_numpy(np.ascontiguousarray(pieces[number : number + 1]))
    client.async_stream_infer(
        MODEL,
        [tensor],
        request_id=str(index),
        sequence_id=index + 1,
        sequence_start=number == 0,
        sequence_end=number == len(pieces) - 1,
    )


def _table(heard: Sequence[SoundResult]) -> Table:
    table = Table(title="Segments of speech", title_justify="left")
    table.add_column("sound")
    table.add_column("s", justify="right")
    table.add_column("speech (s)", overflow="fold")
    table.add_column("probability over time", overflow="fold")
    table.add_column("ms per chunk", justify="right")
    for each in heard:
        found = sound.segments(each.probabilities, _CHUNK_S)
        stretches = ", ".join(f"{began:.2f}-{ended:.2f}" for began, ended in found) or "none"
        length_s = f"{len(each.probabilities) * _CHUNK_S:.2f}"
        table.add_row(each.name, length_s, stretches, _line(each.probabilities), f"{each.chunk_ms:.2f}")
    return table


def _line(probabilities: Sequence[float], width: int = 48) -> str:
    """Draw probabilities as one line of blocks."""
    blocks = " ▁▂▃▄▅▆▇█"
    step = max(1, -(-len(probabilities) // width))
    highest = [max(probabilities[at : at + step]) for at in range(0, len(probabilities), step)]
    return "".join(blocks[round(value * (len(blocks) - 1))] for value in highest)
