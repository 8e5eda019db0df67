"""Sound for the voice detector: WAV files to 16 kHz, and probabilities to segments of speech."""

import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

Samples = np.ndarray[Any, np.dtype[np.float32]]

_FILTER_TAPS = 129
_DTYPES = {1: "u1", 2: "<i2", 4: "<i4"}


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
