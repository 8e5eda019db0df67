"""Small models in numpy whose faithful and sabotaged conversions calibrate the gate of `naiad optimize`.

Each has samples, and a function from a batch of inputs to outputs, in FP32 unless it says otherwise. A model of
layers can also compute as FP16, BF16 and int8 do: weights and activations are rounded as those formats round.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"
Arrays: TypeAlias = Mapping[str, Array]
Function: TypeAlias = Callable[[Arrays], Arrays]
SAMPLES = 64


@dataclass(frozen=True)
class GateModel:
    """A source with its samples."""

    name: str
    function: Function
    samples: list[dict[str, Array]]
    has_batch: bool = True
    compares_inputs: bool = False
    """It is known to compare the numbers of its inputs as they are given."""


@dataclass(frozen=True)
class Rounding:
    """How weights and activations are rounded."""

    number: Callable[[Array], Array] = lambda values: values
    levels: int = 0
    """Greatest integer of a weight: 127 of int8; 0 for floating-point numbers."""
    is_by_channel: bool = True

    def weights(self, values: Array) -> Array:
        """Return rounded weights [inputs, outputs]."""
        if not self.levels:
            return self.number(values)
        size = np.abs(values).max(0 if self.is_by_channel else None) / self.levels
        return np.asarray(np.round(values / size) * size)

    def activations(self, values: Array, low: float, high: float) -> Array:
        """Return rounded activations, in int8 within the range of calibration."""
        if not self.levels:
            return self.number(values)
        step = max(high - low, 1e-9) / 255
        return np.clip(np.round((values - low) / step), 0, 255) * step + low


def half(values: Array) -> Array:
    """Round to FP16."""
    with np.errstate(over="ignore"):
        return values.astype(np.float16).astype(values.dtype)


def brain(values: Array) -> Array:
    """Round to BF16: eight bits of mantissa."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x8000) & 0xFFFF0000).astype(np.uint32).view(np.float32)


EXACT = Rounding()
FP16, BF16 = Rounding(half), Rounding(brain)
INT8 = Rounding(levels=127)
COARSE = Rounding(levels=1, is_by_channel=False)
"""Weights of two bits."""


class Layers:
    """A network of dense layers with ReLU or tanh between them."""

    def __init__(self, seed: int, sizes: tuple[int, ...], *, is_smooth: bool = False) -> None:
        random = np.random.default_rng(seed)
        self.weights = [
            (random.normal(size=(one, two)) * np.sqrt(1.5 / one)).astype(np.float32)
            for one, two in itertools.pairwise(sizes)
        ]
        self.offsets = [(random.normal(size=two) * 0.2).astype(np.float32) for two in sizes[1:]]
        self.is_smooth = is_smooth
        self.ranges: list[tuple[float, float]] = []

    def calibrate(self, rows: Array) -> None:
        """Note the ranges of activations."""
        self.ranges = [(float(rows.min()), float(rows.max()))]
        for index in range(len(self.weights)):
            rows = self._layer(rows, index, EXACT)
            self.ranges.append((float(rows.min()), float(rows.max())))

    def __call__(self, rows: Array, rounding: Rounding = EXACT, *, shift: float = 0.0) -> Array:
        """Return the answers; `shift` is a zero point of the hidden activations that is off by a number of steps."""
        rows = rows.astype(np.float32)
        for index in range(len(self.weights)):
            low, high = self.ranges[index]
            rows = rounding.activations(rows, low, high) + (shift * (high - low) / 255 if index else 0)
            rows = self._layer(rows.astype(np.float32), index, rounding)
        return rows

    def _layer(self, rows: Array, index: int, rounding: Rounding) -> Array:
        made = rows @ rounding.weights(self.weights[index]) + self.offsets[index]
        if index == len(self.weights) - 1:
            return made.astype(np.float32)
        return (np.tanh(made) if self.is_smooth else np.maximum(made, 0)).astype(np.float32)


def softmax(scores: Array) -> Array:
    """Return probabilities."""
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True), scores.dtype)


def layered(name: str, seed: int, sizes: tuple[int, ...], head: Callable[[Array], Arrays]) -> "LayeredModel":
    """Return a model of layers with a head that makes outputs of the last activations."""
    layers = Layers(seed, sizes, is_smooth=seed % 2 == 1)
    rows = np.random.default_rng(seed + 100).normal(size=(SAMPLES, sizes[0])).astype(np.float32)
    layers.calibrate(rows)
    return LayeredModel(name, layers, head, [{"X": row} for row in rows])


@dataclass(frozen=True)
class LayeredModel:
    """A model of layers, whose conversions round as real formats do."""

    name: str
    layers: Layers
    head: Callable[[Array], Arrays]
    samples: list[dict[str, Array]]

    def source(self) -> GateModel:
        """Return the source."""
        return GateModel(self.name, self.rounded(EXACT), self.samples)

    def rounded(self, rounding: Rounding, *, shift: float = 0.0) -> Function:
        """Return a conversion."""
        return lambda inputs: self.head(self.layers(inputs["X"], rounding, shift=shift))


def _people(last: Array) -> Arrays:
    return {"Y": last * np.array([4e4, 5, 0.3], np.float32) + np.array([1e5, 30, 0.5], np.float32)}


def _scores(last: Array) -> Arrays:
    return {"SCORES": last}


def _classes(last: Array) -> Arrays:
    chosen = last.argmax(-1)
    names = np.array([f"class-{place}".encode() for place in range(last.shape[-1])], object)
    return {"PROBABILITIES": softmax(2 * last), "LABEL": chosen.astype(np.int64), "NAME": names[chosen]}


def _vectors(last: Array) -> Arrays:
    return {"VECTOR": last / np.linalg.norm(last, axis=-1, keepdims=True)}


def _detections(last: Array) -> Arrays:
    boxes = last.reshape(len(last), -1, 6)
    parts = (boxes[..., :4] * np.float32(120) + np.float32(320), 1 / (1 + np.exp(-boxes[..., 4:])))
    return {"BOXES": np.concatenate(parts, -1).astype(np.float32)}


def _planes(last: Array) -> Arrays:
    return {"PLANES": np.ascontiguousarray(np.swapaxes(_detections(last)["BOXES"], 1, 2))}


def _number(last: Array) -> Arrays:
    return {"NUMBER": last[:, :1]}


def layered_models() -> dict[str, LayeredModel]:
    """Return the models that all precisions are calibrated with."""
    made = (
        layered("people", 1, (12, 64, 48, 3), _people),
        layered("scores", 2, (16, 64, 64, 5), _scores),
        layered("classes", 3, (16, 64, 32, 10), _classes),
        layered("vectors", 4, (20, 64, 64), _vectors),
        layered("detections", 5, (16, 64, 120), _detections),
        layered("planes", 6, (16, 64, 240), _planes),
        layered("number", 7, (10, 48, 24, 1), _number),
    )
    return {each.name: each for each in made}


def amounts() -> GateModel:
    """Return single numbers over six decades."""
    rows = np.linspace(-1, 1, SAMPLES).astype(np.float32)[:, None] * np.array([7.5, 0.3, 0.2], np.float32)
    return GateModel(
        "amounts",
        lambda inputs: {"AMOUNT": np.exp(inputs["X"].sum(-1, keepdims=True) * 0.93 + 7.5).astype(np.float32)},
        [{"X": row} for row in rows],
    )


def moments() -> GateModel:
    """Return time stamps in FP64 and counts in INT64."""
    random = np.random.default_rng(11)
    rows = random.uniform(0, 3e7, size=(SAMPLES, 2))
    return GateModel(
        "moments",
        lambda inputs: {
            "SECONDS": 1.7e9 + inputs["X"].sum(-1, keepdims=True),
            "COUNT": np.floor(inputs["X"][:, :1] / 86_400).astype(np.int64),
        },
        [{"X": row} for row in rows],
    )


_WORDS = np.array([b"caf\xc3\xa9", b"na\xefve", b"", b"\xff\x00", b"plain", b"Plain "], object)


def words() -> GateModel:
    """Return bytes, some of which are no UTF-8."""
    random = np.random.default_rng(12)
    return GateModel(
        "words",
        lambda inputs: {"WORDS": _WORDS[np.abs(inputs["PLACES"]) % len(_WORDS)]},
        [{"PLACES": random.integers(0, 6, 4)} for _ in range(SAMPLES)],
    )


_TABLE = np.random.default_rng(13).normal(size=(50, 8)).astype(np.float32)


def masked_mean(inputs: Arrays) -> Arrays:
    """Return the mean of the embeddings of the tokens that the mask shows, weighted by place."""
    mask = inputs["MASK"].astype(np.float32)[..., None]
    places = 1 + 0.1 * np.sin(np.arange(inputs["IDS"].shape[1], dtype=np.float32))[None, :, None]
    vectors = _TABLE[np.clip(inputs["IDS"], 0, 49)] * mask * places
    return {"MEAN": (vectors.sum(1) / np.maximum(mask.sum(1), 1)).astype(np.float32)}


def tokens(*, is_masked: bool, is_of_one_length: bool) -> GateModel:
    """Return a model of tokens; the samples may have a constant mask and one length."""
    random = np.random.default_rng(14)
    samples = []
    for _ in range(SAMPLES):
        length = 12 if is_of_one_length else int(random.integers(4, 16))
        mask = np.ones(length, np.int64)
        if is_masked:
            mask[int(random.integers(2, length)) :] = 0
        samples.append({"IDS": random.integers(0, 40, length), "MASK": mask})
    return GateModel(f"tokens{'' if is_masked else ', mask of ones'}", masked_mean, samples)


_KERNEL = np.random.default_rng(15).normal(size=(3 * 36, 5)).astype(np.float32) * 0.2


def picture_features(inputs: Arrays) -> Arrays:
    """Return features of pictures with three channels."""
    rows = inputs["IMAGE"].reshape(len(inputs["IMAGE"]), -1)
    return {"FEATURES": np.tanh(rows @ _KERNEL) * 2 + rows.mean(-1, keepdims=True)}


def pictures(*, is_grey: bool, count: int = SAMPLES) -> GateModel:
    """Return a model of pictures, with equal channels in the samples or not."""
    random = np.random.default_rng(16)
    made = []
    for _ in range(count):
        picture = random.uniform(0, 1, (1 if is_grey else 3, 6, 6)).astype(np.float32)
        made.append({"IMAGE": np.repeat(picture, 3, 0) if is_grey else picture})
    return GateModel("grey pictures" if is_grey else "pictures", picture_features, made)


_STEPS = np.random.default_rng(17)
_TREES = (_STEPS.integers(0, 6, 200), _STEPS.normal(size=200), _STEPS.normal(size=200) * 0.1)


SPLITS = _TREES[1].astype(np.float32)
WHOLE_SPLITS = np.round(SPLITS * 20_000)


def forest_sum(
    inputs: Arrays, compare: Callable[[Array, Array], Array] = np.less, splits: Array = SPLITS, trees: int = 200
) -> Arrays:
    """Return the sum of up to 200 trees with one split each, in FP64."""
    places, _, leaves = (each[:trees] for each in _TREES)
    is_left = compare(inputs["X"][:, places], splits[:trees])
    return {"Y": np.where(is_left, leaves, -leaves).sum(-1, keepdims=True)}


def forest(*, compares_inputs: bool = False) -> GateModel:
    """Return a boosted forest that answers in FP64."""
    rows = np.random.default_rng(18).normal(size=(SAMPLES, 6)).astype(np.float32)
    return GateModel("forest", forest_sum, [{"X": row} for row in rows], compares_inputs=compares_inputs)


def counted_forest(offset: float = 0.0) -> GateModel:
    """Return a forest of whole numbers, whose splits may be beside them."""
    rows = np.round(np.random.default_rng(19).normal(size=(SAMPLES, 6)) * 20_000).astype(np.float32)
    splits = WHOLE_SPLITS + np.float32(offset)
    return GateModel("counted forest", lambda inputs: forest_sum(inputs, splits=splits), [{"X": row} for row in rows])


def scaled_forest(number: type[np.floating[Any]]) -> GateModel:
    """Return a forest that scales its inputs first, in FP32 or FP64."""
    rows = (np.random.default_rng(20).normal(size=(SAMPLES, 6)) * 7 + 40).astype(np.float32)

    def answer(inputs: Arrays) -> Arrays:
        return forest_sum({"X": (inputs["X"].astype(number) - number(40.1)) / number(7.3)})

    return GateModel("scaled forest", answer, [{"X": row} for row in rows])
