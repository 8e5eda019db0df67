"""Sound for the voice detector: reading, resampling, chunks, and segments of speech."""

import wave

import numpy as np
import pytest

from naiad.tools.demo import voice


def write_wav(path, samples, *, rate_hz=16_000, width=2, channels=1):
    with wave.open(str(path), "wb") as sink:
        sink.setnchannels(channels)
        sink.setsampwidth(width)
        sink.setframerate(rate_hz)
        sink.writeframes(samples.tobytes())
    return path


def test_empty_file_is_reported(tmp_path) -> None:
    (tmp_path / "a.wav").touch()
    with pytest.raises(ValueError, match=r"a\.wav is not a WAV file: it is empty"):
        voice.read_wav(tmp_path / "a.wav", 16_000)


@pytest.mark.parametrize("length", [4, 20, 43])
def test_truncated_header_is_reported(tmp_path, length) -> None:
    content = write_wav(tmp_path / "a.wav", np.zeros(4, "<i2")).read_bytes()
    (tmp_path / "a.wav").write_bytes(content[:length])
    with pytest.raises(ValueError, match=r"a\.wav is not a WAV file with plain samples: \S"):
        voice.read_wav(tmp_path / "a.wav", 16_000)


def test_truncated_recording_is_read_partially(tmp_path) -> None:
    content = write_wav(tmp_path / "a.wav", np.array([16384] * 6, "<i2"), channels=2).read_bytes()
    (tmp_path / "a.wav").write_bytes(content[:-3])
    assert voice.read_wav(tmp_path / "a.wav", 16_000).tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("width", "samples"),
    [
        (1, np.array([128, 192, 64], np.uint8)),
        (2, np.array([0, 16384, -16384], "<i2")),
        (4, np.array([0, 2**30, -(2**30)], "<i4")),
    ],
)
def test_samples_of_every_width_are_normalised(tmp_path, width, samples) -> None:
    assert voice.read_wav(write_wav(tmp_path / "a.wav", samples, width=width), 16_000).tolist() == [0, 0.5, -0.5]


def test_channels_are_mixed(tmp_path) -> None:
    samples = np.array([[0, 16384], [16384, 16384]], "<i2")
    assert voice.read_wav(write_wav(tmp_path / "a.wav", samples, channels=2), 16_000).tolist() == [0.25, 0.5]


def test_24_bits_are_rejected(tmp_path) -> None:
    with pytest.raises(ValueError, match="samples of 24 bits, expected 8, 16 or 32"):
        voice.read_wav(write_wav(tmp_path / "a.wav", np.zeros(6, np.uint8), width=3), 16_000)


@pytest.mark.parametrize("rate_hz", [8_000, 44_100, 48_000])
def test_a_tone_stays_a_tone_at_another_rate(rate_hz) -> None:
    tone = np.sin(2 * np.pi * 440 * np.arange(rate_hz) / rate_hz).astype(np.float32)
    expected = np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000)
    resampled = voice.resample(tone, rate_hz, 16_000)
    assert len(resampled) == 16_000
    assert np.abs(resampled - expected)[200:-200].max() < 0.02


def test_frequencies_above_new_rate_are_filtered() -> None:
    tone = np.sin(2 * np.pi * 12_000 * np.arange(48_000) / 48_000).astype(np.float32)
    assert np.abs(voice.resample(tone, 48_000, 16_000))[200:-200].max() < 0.01


def test_the_last_chunk_is_filled_with_silence() -> None:
    assert voice.chunks(np.ones(5, np.float32), 4).tolist() == [[1, 1, 1, 1], [1, 0, 0, 0]]
    assert voice.chunks(np.ones(0, np.float32), 4).tolist() == [[0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("probabilities", "expected"),
    [
        ([], []),
        ([0.1, 0.4, 0.1], []),
        ([0.1, 0.6, 0.4, 0.1], [(1, 3)]),
        ([0.9, 0.9], [(0, 2)]),
        ([0.9, 0.1, 0.9], [(0, 3)]),
        ([0.9, 0.1, 0.1, 0.1, 0.9], [(0, 1), (4, 5)]),
        ([0.9, 0.1, 0.4, 0.9], [(0, 1), (3, 4)]),
    ],
)
def test_stretches_of_speech(probabilities, expected) -> None:
    assert voice.segments(probabilities, 1.0, pause_s=1.5) == expected
