"""A real detector over real speech: its answers are wrong by up to 0.97 when states are lost or mixed."""

from collections.abc import Iterator

import numpy as np
import pytest
from bench import sequences

from support.server_process import ServerProcess, serving

SEQUENCES, CHUNKS = 50, 40
pytestmark = pytest.mark.timeout(300)  # the model may have to be downloaded first


@pytest.fixture(scope="module")
def spoken() -> sequences.Speech:
    return sequences.speech(SEQUENCES, CHUNKS)


@pytest.fixture(scope="module")
def voice_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = sequences.write_repository(tmp_path_factory.mktemp("voices") / "models", SEQUENCES)
    with serving(tmp_path_factory.mktemp("server") / "log", f"--model-repository={root}") as running:
        yield running


def port_of(server: ServerProcess) -> int:
    return int(server.http_url.rsplit(":", 1)[1])


@pytest.mark.parametrize(
    ("model", "live"),
    [(sequences.PLAIN, SEQUENCES), (sequences.OLDEST, SEQUENCES), (sequences.DIRECT, sequences.MAX_BATCH_SIZE)],
)
def test_no_state_is_lost_or_mixed(voice_server: ServerProcess, spoken: sequences.Speech, model, live) -> None:
    heard = sequences.run(port_of(voice_server), model, spoken, live=live)
    assert heard.chunks == SEQUENCES * CHUNKS
    assert heard.wrong == 0, f"off by up to {heard.worst}"


def test_what_is_compared_depends_on_the_state(voice_server: ServerProcess, spoken: sequences.Speech) -> None:
    """The answers of one sequence are wrong for its neighbour, so the test above can fail."""
    mixed = sequences.Speech(spoken.chunks, np.roll(spoken.expected, 1, axis=0))
    heard = sequences.run(port_of(voice_server), sequences.OLDEST, mixed, live=SEQUENCES)
    assert heard.wrong > heard.chunks / 2
