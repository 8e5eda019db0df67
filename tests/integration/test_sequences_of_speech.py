"""A real detector over real speech: its answers are wrong by up to 0.97 when states are lost or mixed.

Silero has a state from chunk to chunk. The server keeps it in the sequence batcher, or the client sends it with every
chunk and gets it back: the same network, the plain way.
"""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import naiad.client
from naiad.tools.demo import voice, voice_model
from naiad.tools.demo.voice_model import CHUNK_SAMPLES, CONTEXT_SAMPLES, RATE_HZ, STATE_DIMS
from support.server_process import ServerProcess, serving

SEQUENCES, CHUNKS = 50, 40
CONNECTIONS = MAX_BATCH_SIZE = 32
TOLERANCE = 1e-4
"""Rows of a batch do not change each other by more than 2e-6."""
OLDEST, DIRECT, PLAIN = "voice_oldest", "voice_direct", "voice_plain"
Array = np.ndarray[Any, Any]
pytestmark = pytest.mark.timeout(300)  # the model may have to be downloaded first


@dataclass(frozen=True)
class Speech:
    """Chunks f32[sequences, chunks, 512] and the probabilities f32[sequences, chunks] that are right."""

    chunks: Array
    expected: Array


def initial_state(count: int) -> tuple[Array, Array]:
    return np.zeros((count, CONTEXT_SAMPLES), np.float32), np.zeros((count, *STATE_DIMS), np.float32)


@pytest.fixture(scope="module")
def spoken() -> Speech:
    """Different stretches of real speech, with what onnxruntime says to them by itself."""
    recorded = np.concatenate([voice.read_wav(path, RATE_HZ) for path in voice.speech()])
    need = CHUNKS * CHUNK_SAMPLES
    looped = np.resize(recorded, len(recorded) + need)
    offsets = np.arange(SEQUENCES) * 9973 % len(recorded)
    chunks = np.stack([looped[at : at + need].reshape(CHUNKS, CHUNK_SAMPLES) for at in offsets])
    session = onnxruntime.InferenceSession(voice_model.batch_first(voice_model.network()))
    context, state = initial_state(SEQUENCES)
    expected = np.empty((SEQUENCES, CHUNKS), np.float32)
    for number in range(CHUNKS):
        given = {"chunk": chunks[:, number], "context": context, "state_in": state}
        prob, context, state = session.run(None, given)
        expected[:, number] = prob[:, 0]
    return Speech(chunks, expected)


@pytest.fixture(scope="module")
def voice_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root: Path = tmp_path_factory.mktemp("voices") / "models"
    root.mkdir()
    oldest = f"oldest {{ max_candidate_sequences: {SEQUENCES} }}"
    voice_model.write_sequence_model(root, OLDEST, oldest, MAX_BATCH_SIZE)
    voice_model.write_sequence_model(root, DIRECT, "direct { }", MAX_BATCH_SIZE)
    voice_model.write_plain_model(root, PLAIN, MAX_BATCH_SIZE)
    with serving(tmp_path_factory.mktemp("server") / "log", f"--model-repository={root}") as running:
        yield running


async def differences(url: str, model: str, spoken: Speech) -> Array:
    """Send the chunks of all sequences, some at a time; return how far each answer is from what is right."""
    found = np.full(spoken.expected.shape, np.inf)
    slots = asyncio.Semaphore(CONNECTIONS)
    async with naiad.client.Client(f"http://{url}") as client:

        async def one(sequence: int) -> None:
            async with slots:
                context, state = initial_state(1)
                for number, chunk in enumerate(spoken.chunks[sequence]):
                    inputs: Mapping[str, Array] = {"chunk": chunk[None]}
                    if model == PLAIN:
                        answer = await client.infer(model, {**inputs, "context": context, "state_in": state})
                        context, state = answer["context_out"], answer["state_out"]
                    else:
                        answer = await client.infer(
                            model,
                            inputs,
                            sequence_id=sequence + 1,
                            sequence_start=number == 0,
                            sequence_end=number == CHUNKS - 1,
                        )
                    found[sequence, number] = abs(float(answer["prob"][0, 0]) - spoken.expected[sequence, number])

        await asyncio.gather(*map(one, range(SEQUENCES)))
    return found


@pytest.mark.parametrize("model", [PLAIN, OLDEST, DIRECT])
def test_no_state_is_lost_or_mixed(voice_server: ServerProcess, spoken: Speech, model: str) -> None:
    found = asyncio.run(differences(voice_server.http_url, model, spoken))
    assert found.max() <= TOLERANCE


def test_what_is_compared_depends_on_the_state(voice_server: ServerProcess, spoken: Speech) -> None:
    """The answers of one sequence are wrong for its neighbour, so the test above can fail."""
    mixed = Speech(spoken.chunks, np.roll(spoken.expected, 1, axis=0))
    found = asyncio.run(differences(voice_server.http_url, OLDEST, mixed))
    assert (found > TOLERANCE).mean() > 0.5
