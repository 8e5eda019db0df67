"""Streams speech to the server, chunk by chunk as from a microphone, and prints the segments of speech."""

import queue
import time
import wave
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from naiad.tools.demo import voice_model
from naiad.tools.demo.demo_progress import waiting
from naiad.tools.demo.demo_server import DemoSettings, serving
from naiad.tools.demo.packages import SILERO, SILERO_EXAMPLE, fetch, fetch_all
from naiad.tools.demo.voice_model import CHUNK_SAMPLES, RATE_HZ

Samples = np.ndarray[Any, np.dtype[np.float32]]

MODEL = "voice"
RESPONSE_TIMEOUT_S = 30.0
_CHUNK_S = CHUNK_SAMPLES / RATE_HZ
_ALSA = Path("/usr/share/sounds/alsa")
_ALSA_NAMES = ("Front_Center.wav", "Rear_Left.wav", "Side_Right.wav", "Rear_Center.wav")
_CLIP_STARTS_S = (1.0, 26.0, 87.5, 161.0)
_CLIP_S = 3.0
_FILTER_TAPS = 129
_DTYPES = {1: "u1", 2: "<i2", 4: "<i4"}


@dataclass(frozen=True, slots=True)
class SoundResult:
    """The server's results for one sound."""

    name: str
    probabilities: Sequence[float]
    chunk_ms: float
    """Mean time from a chunk to its response."""


def run(settings: DemoSettings, console: Console, wav: Path | None = None) -> int:
    """Run the demonstration over `wav` or available speech files; return the exit code.

    Raises RuntimeError if the model or speech is not available, ValueError for a file that is not a WAV file.
    """
    paths = _alsa() if wav is None else [wav]
    fetch_all([SILERO] if paths else [SILERO, SILERO_EXAMPLE], console)
    paths = paths or clips(recording())
    origin = "" if wav is not None else "real speech, "
    console.print(f"\n[bold]Sounds[/bold]: {origin}{paths[0].parent}", soft_wrap=True)
    sounds = [(path.name, read_wav(path, RATE_HZ)) for path in paths]
    settings.repository.mkdir(parents=True, exist_ok=True)
    home = voice_model.write_sequence_model(settings.repository, MODEL, "oldest { max_candidate_sequences: 64 }")
    with serving(home.parent, settings, console, MODEL) as running:
        with waiting(console, "streaming"):
            heard = stream(running.grpc_url, sounds)
        console.print(_table(heard))
        count = sum(len(each.probabilities) for each in heard)
        console.print(f"{count} chunks of 32 ms in {len(heard)} sequences, {heard[0].chunk_ms:.2f} ms each")
    return 0


def speech() -> list[Path]:
    """Return files of real speech: from Debian's alsa-utils, otherwise from Silero's source."""
    return _alsa() or [recording()]


def _alsa() -> list[Path]:
    return [_ALSA / name for name in _ALSA_NAMES if (_ALSA / name).is_file()]


def recording() -> Path:
    """Return Silero's example, three minutes of one speaker. Raises RuntimeError if it is not available."""
    (path,) = fetch(SILERO_EXAMPLE).values()
    return path


def clips(recording: Path) -> list[Path]:
    """Return four short clips of a recording, written beside it."""
    paths = []
    with wave.open(str(recording), "rb") as source:
        rate = source.getframerate()
        for start_s in _CLIP_STARTS_S:
            path = recording.with_name(f"{recording.stem}_{start_s:g}s.wav")
            source.setpos(int(start_s * rate))
            with wave.open(str(path), "wb") as clip:
                clip.setparams(source.getparams())
                clip.writeframes(source.readframes(int(_CLIP_S * rate)))
            paths.append(path)
    return paths


def stream(grpc_url: str, sounds: Sequence[tuple[str, Samples]]) -> list[SoundResult]:
    """Send the sounds as parallel sequences over one gRPC stream, a chunk of each in turn.

    Raises RuntimeError with the server's message.
    """
    import tritonclient.grpc as api

    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    cut = [chunks(samples, CHUNK_SAMPLES) for _, samples in sounds]
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


def _send(client: Any, api: Any, pieces: Samples, index: int, number: int) -> None:
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
    table.add_column("sound", overflow="fold")
    table.add_column("s", justify="right")
    table.add_column("speech (s)", overflow="fold")
    table.add_column("probability over time", no_wrap=True)
    for each in heard:
        found = segments(each.probabilities, _CHUNK_S)
        stretches = ", ".join(f"{began:.2f}-{ended:.2f}" for began, ended in found) or "none"
        length_s = f"{len(each.probabilities) * _CHUNK_S:.2f}"
        table.add_row(each.name, length_s, stretches, _line(each.probabilities))
    return table


def _line(probabilities: Sequence[float], width: int = 28) -> str:
    """Draw probabilities as one line of blocks."""
    blocks = " ▁▂▃▄▅▆▇█"
    step = max(1, -(-len(probabilities) // width))
    highest = [max(probabilities[at : at + step]) for at in range(0, len(probabilities), step)]
    return "".join(blocks[round(value * (len(blocks) - 1))] for value in highest)


def read_wav(path: Path, rate_hz: int) -> Samples:
    """Return a WAV file as one channel f32[samples] from -1 to 1 at `rate_hz`.

    Raises ValueError unless it is PCM of 8, 16 or 32 bits.
    """
    if not path.stat().st_size:
        raise ValueError(f"{path} is not a WAV file: it is empty")
    try:
        with wave.open(str(path), "rb") as source:
            channels, width, rate = source.getnchannels(), source.getsampwidth(), source.getframerate()
            raw = source.readframes(source.getnframes())
    except (wave.Error, EOFError) as error:
        raise ValueError(
            f"{path} is not a WAV file with plain samples: {str(error) or 'it ends too soon'}"
        ) from error
    if width not in _DTYPES:
        raise ValueError(f"{path} has samples of {8 * width} bits, expected 8, 16 or 32")
    # A truncated recording may end within a sample.
    raw = raw[: len(raw) - len(raw) % (width * channels)]
    integers = np.frombuffer(raw, _DTYPES[width]).reshape(-1, channels)
    middle, scale = (128.0, 128.0) if width == 1 else (0.0, float(2 ** (8 * width - 1)))
    mono = ((integers.astype(np.float32) - middle) / scale).mean(1)
    return resample(mono, rate, rate_hz)


def resample(samples: Samples, rate_hz: int, wanted_hz: int) -> Samples:
    """Return `samples` at another rate: a low-pass of windowed sinc, then values between the samples."""
    if rate_hz == wanted_hz or not len(samples):
        return samples.astype(np.float32)
    if wanted_hz < rate_hz:
        positions = np.arange(_FILTER_TAPS) - _FILTER_TAPS // 2
        cutoff = 0.9 * wanted_hz / rate_hz
        taps = cutoff * np.sinc(cutoff * positions) * np.hamming(_FILTER_TAPS)
        samples = np.convolve(samples, taps / taps.sum(), "same")
    count = int(len(samples) * wanted_hz / rate_hz)
    at = np.arange(count) * (rate_hz / wanted_hz)
    resampled: Samples = np.interp(at, np.arange(len(samples)), samples).astype(np.float32)
    return resampled


def chunks(samples: Samples, size: int) -> Samples:
    """Return f32[chunks, size], the last one padded with silence."""
    count = max(1, -(-len(samples) // size))
    padded = np.zeros(count * size, np.float32)
    padded[: len(samples)] = samples
    return padded.reshape(count, size)


def segments(
    probabilities: Sequence[float], chunk_s: float, *, begins: float = 0.5, ends: float = 0.35, pause_s: float = 0.1
) -> list[tuple[float, float]]:
    """Return the segments of speech in seconds.

    A segment begins with a chunk of at least `begins`, ends with the first of less than `ends`, and continues over a
    pause shorter than `pause_s`.
    """
    found: list[tuple[float, float]] = []
    speaks = False
    for number, probability in enumerate(probabilities):
        if speaks and probability >= ends:
            found[-1] = (found[-1][0], (number + 1) * chunk_s)
            continue
        speaks = probability >= begins
        if not speaks:
            continue
        began_s = number * chunk_s
        if found and began_s - found[-1][1] < pause_s:
            began_s = found.pop()[0]
        found.append((began_s, (number + 1) * chunk_s))
    return found
