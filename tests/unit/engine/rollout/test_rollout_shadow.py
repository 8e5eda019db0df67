"""Shadow copies: what is copied and compared, and that clients never notice."""

import numpy as np
import pytest

from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.rollout.rollout_declaration import DEFAULT_ATOL
from naiad.core.datatype import DataType
from naiad.core.errors import internal, unavailable
from naiad.core.response import InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec
from naiad.engine.rollout import shadow
from naiad.engine.rollout.response_comparison import ResponseComparison
from support.rollout_parts import Scene


def results(scene: Scene) -> dict[str, int]:
    return {name: count for name, count in scene.engine.rollout_commands.status("m").counts.shadow.items() if count}


@pytest.fixture
def scene() -> Scene:
    made = Scene(1, 2)
    made.change(stable=1, canary=2, shadow=100)
    return made


def test_copy_is_made_after_the_response(scene: Scene) -> None:
    scene.send()
    assert scene.seen() == [1, 0]
    scene.versions[1].answer(b"12345678")
    assert len(scene.answers) == 1
    assert scene.seen() == [1, 0]
    scene.loop.run()
    assert scene.seen() == [1, 1]
    copy = scene.versions[2].seen[0]
    assert copy.data == scene.versions[1].seen[0].data
    scene.versions[2].answer(b"12345678")
    assert results(scene) == {"equal": 1}


def test_client_gets_one_response(scene: Scene) -> None:
    scene.send(5)
    scene.versions[1].answer()
    scene.loop.run()
    scene.versions[2].answer(error=internal("broken"))
    assert [response.header.model_version for _, response in scene.answers.received] == ["1"] * 5
    assert results(scene) == {"failed": 5}


def test_different_responses_are_counted(scene: Scene) -> None:
    for number in (0.0, 1.0, 0.000001):
        scene.send()
        scene.versions[1].answer(np.zeros(2, np.float32).tobytes())
        scene.loop.run()
        scene.versions[2].answer(np.full(2, number, np.float32).tobytes())
    assert results(scene) == {"equal": 2, "different": 1}


def test_share_of_the_requests_is_copied() -> None:
    scene = Scene(1, 2)
    scene.change(stable=1, canary=2, shadow=25)
    for _ in range(100):
        scene.send()
        scene.versions[1].answer()
        scene.loop.run()
        scene.versions[2].answer()
    assert scene.seen()[0] == 100
    assert 24 <= scene.seen()[1] <= 26


def test_requests_of_the_canary_are_not_copied() -> None:
    scene = Scene(1, 2)
    scene.change(stable=1, canary=2, weight=100, shadow=100)
    scene.send(3)
    scene.answer()
    scene.loop.run()
    assert scene.seen() == [0, 3]


def test_failed_and_cancelled_requests_are_not_copied(scene: Scene) -> None:
    scene.send()
    scene.versions[1].answer(error=internal("broken"))
    scene.engine.inference.cancel(scene.send()[0])
    scene.loop.run()
    assert scene.seen() == [2, 0]
    assert results(scene) == {}


def test_copies_in_flight_are_bounded(scene: Scene) -> None:
    scene.send(shadow.MAX_IN_FLIGHT + 10)
    scene.versions[1].answer()
    scene.loop.run()
    assert len(scene.versions[2].waiting) == shadow.MAX_IN_FLIGHT
    assert results(scene) == {"skipped": 10}
    scene.versions[2].answer()
    scene.send()
    scene.versions[1].answer()
    scene.loop.run()
    assert len(scene.versions[2].waiting) == 1


def test_copied_bytes_are_bounded(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow, "MAX_BYTES", 40)
    scene.send(5)  # 16 bytes each, with the response
    scene.versions[1].answer()
    scene.loop.run()
    assert len(scene.versions[2].waiting) == 2
    assert results(scene) == {"skipped": 3}


@pytest.mark.parametrize("version", [1, 2])
def test_copies_are_dropped_while_requests_queue(scene: Scene, version: int) -> None:
    scene.versions[version].queued = 10
    scene.send()
    scene.versions[1].answer()
    scene.loop.run()
    assert scene.seen() == [1, 0]
    assert results(scene) == {"skipped": 1}


def test_unhealthy_or_full_canary_gets_no_copies(scene: Scene) -> None:
    scene.versions[2].reason = "ill"
    scene.send()
    scene.versions[1].answer()
    scene.loop.run()
    scene.versions[2].reason = ""
    scene.versions[2].rejection = lambda request: unavailable("full")
    scene.send()
    scene.versions[1].answer()
    scene.loop.run()
    assert results(scene) == {"skipped": 2}


@pytest.mark.parametrize("fields", [{"sequence_id": 3, "sequence_start": True}])
def test_sequences_are_not_copied(scene: Scene, fields: dict[str, int]) -> None:
    scene.send(**fields)
    scene.versions[1].answer()
    scene.loop.run()
    assert results(scene) == {"skipped": 1}


def test_decoupled_models_are_not_copied() -> None:
    config = ModelConfig(name="m")
    config.model_transaction_policy.decoupled = True
    scene = Scene(1, 2, config=config)
    scene.change(stable=1, canary=2, shadow=100)
    scene.send()
    scene.versions[1].answer()
    scene.loop.run()
    assert results(scene) == {"skipped": 1}


def test_end_of_the_rollout_ends_the_copies(scene: Scene) -> None:
    scene.change(action="rollback")
    scene.send()
    scene.versions[1].answer()
    scene.loop.run()
    assert scene.seen() == [1, 0]


# --- comparison -----------------------------------------------------------------------------------------------------


def response(*tensors: tuple[str, DataType, np.ndarray]) -> InferResponse:  # type: ignore[type-arg]  # any element
    specs = [TensorSpec(name, datatype, array.shape) for name, datatype, array in tensors]
    return InferResponse(ResponseHeader("m", "1", specs), [array.tobytes() for _, _, array in tensors])


def floats(*values: float) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (floats(1, 2), floats(1, 2), True),
        (floats(1, 2), floats(1.0009, 2), True),
        (floats(1, 2), floats(1.002, 2), False),
        (floats(float("nan"), 2), floats(float("nan"), 2.0001), True),
        (floats(float("inf"), 2), floats(1e38, 2), False),
        (floats(0, 0), floats(0.000009, 0), True),
        (floats(0, 0), floats(0.00002, 0), False),
        (floats(1, 2), floats(1), False),
    ],
)
def test_floats_are_equal_within_the_tolerance(one: np.ndarray, other: np.ndarray, equal: bool) -> None:  # type: ignore[type-arg]  # floats
    expected, found = (response(("OUT", DataType.FP32, array)) for array in (one, other))
    assert ResponseComparison(1e-3, 1e-5).are_equal(expected, found) is equal


@pytest.mark.parametrize("datatype", [DataType.FP16, DataType.BF16, DataType.FP64])
def test_other_floats_have_the_same_tolerance(datatype: DataType) -> None:
    array = np.ones(4, {DataType.FP16: np.float16, DataType.BF16: np.uint16, DataType.FP64: np.float64}[datatype])
    changed = array.copy()
    changed[0] = changed[0] + (1 if datatype is DataType.BF16 else 0.01)
    expected, found = (response(("OUT", datatype, each)) for each in (array, changed))
    assert ResponseComparison(0.1, 1e-3).are_equal(expected, found)
    assert ResponseComparison(0.0, 0.0).are_equal(expected, found) is False


def test_integers_must_be_the_same() -> None:
    expected, found = (response(("OUT", DataType.INT32, np.array([n], np.int32))) for n in (1000, 1001))
    assert not ResponseComparison(1.0, 1.0).are_equal(expected, found)
    assert ResponseComparison(0.0, 0.0).are_equal(expected, expected)


def test_outputs_are_compared_by_name() -> None:
    one, two = ("A", DataType.FP32, floats(1)), ("B", DataType.FP32, floats(2))
    assert ResponseComparison(0, 0).are_equal(response(one, two), response(two, one))
    assert not ResponseComparison(0, 0).are_equal(response(one, two), response(one))
    assert not ResponseComparison(0, 0).are_equal(response(one), response(one, two))
    assert not ResponseComparison(0, 0).are_equal(response(one), response(("B", DataType.FP32, floats(1))))


def test_outputs_of_small_numbers_are_compared() -> None:
    comparison = ResponseComparison(1e-3, DEFAULT_ATOL)
    small, rounded, other = (
        response(("OUT", DataType.FP32, floats(*values))) for values in ((1e-6, 2e-9), (1.0001e-6, 2e-9), (0, 0))
    )
    assert comparison.are_equal(small, rounded)
    assert not comparison.are_equal(small, other)
    large = response(("OUT", DataType.FP32, floats(0.5, 1)))
    assert comparison.are_equal(large, large)
    assert comparison.are_equal(small, other)  # beside 1, these numbers are zeros
    assert ResponseComparison(1e-3, 2e-5).are_equal(small, other)  # a tolerance that a user has chosen
