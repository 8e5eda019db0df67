"""Faithful and sabotaged conversions of the models in `gate_models`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from naiad.tools.optimize.candidate import Precision
from naiad.tools.optimize.optimize_source import Format
from support.gate_models import (
    BF16,
    COARSE,
    EXACT,
    FP16,
    INT8,
    WHOLE_SPLITS,
    Array,
    Arrays,
    Function,
    GateModel,
    LayeredModel,
    amounts,
    counted_forest,
    forest,
    forest_sum,
    layered_models,
    masked_mean,
    moments,
    picture_features,
    pictures,
    scaled_forest,
    tokens,
    words,
)

_P = Precision


@dataclass(frozen=True)
class Case:
    """A conversion of a model."""

    kind: str
    """The row of the table."""
    name: str
    model: GateModel
    function: Function
    precision: Precision = Precision.FP32
    form: Format = Format.ONNX
    is_faithful: bool = False
    gap: str = ""
    """What the verdict names as not shown, where neither samples nor a probe can show the fault."""


def _changed(function: Function, **changes: Callable[[Array], Array]) -> Function:
    """Return a conversion whose outputs are changed, by name."""

    def call(inputs: Arrays) -> Arrays:
        answer = function(inputs)
        return {name: changes[name](values) if name in changes else values for name, values in answer.items()}

    return call


def _noise(share: float) -> Callable[[Array], Array]:
    """Return rounding: a share of each number that depends on the number alone."""

    def change(values: Array) -> Array:
        if values.dtype.kind != "f":
            return values
        noise = np.modf(np.abs(values.astype(np.float64)) * 1e6)[0] * 2 - 1
        return (values * (1 + share * noise)).astype(values.dtype)

    return change


def _all(change: Callable[[Array], Array]) -> Callable[[Function], Function]:
    return lambda function: lambda inputs: {name: change(values) for name, values in function(inputs).items()}


# --- faithful -------------------------------------------------------------------------------------------------------


def faithful() -> Iterator[Case]:
    """Yield conversions that differ by rounding only."""
    formats = {_P.FP16: FP16, _P.BF16: BF16, _P.INT8: INT8, _P.INT8_DYNAMIC: INT8}
    for model in layered_models().values():
        source = model.source()
        rounded = _all(_noise(1e-6))(source.function)
        yield Case("fp32", "fused", source, rounded, is_faithful=True)
        yield Case("fp32", "by OpenVINO", source, rounded, form=Format.OPENVINO, is_faithful=True)
        for precision, rounding in formats.items():
            function = model.rounded(rounding)
            yield Case(precision.value, "rounded", source, function, precision, is_faithful=True)
        yield Case("mixed", "rounded", source, model.rounded(FP16), _P.MIXED, is_faithful=True)
    for source in (
        amounts(),
        moments(),
        words(),
        forest(),
        tokens(is_masked=True, is_of_one_length=False),
        tokens(is_masked=False, is_of_one_length=True),
        pictures(is_grey=True),
        pictures(is_grey=False, count=1),
    ):
        yield Case("other outputs", "the same", source, source.function, is_faithful=True)
        if source.name not in ("moments", "words"):
            share = 1e-14 if source.name == "forest" else 1e-6
            yield Case("other outputs", "rounded", source, _all(_noise(share))(source.function), is_faithful=True)
    trees = forest()
    single = _changed(trees.function, Y=lambda values: values.astype(np.float32))
    yield Case("trees", "treelite in FP32", trees, single, form=Format.TREELITE, is_faithful=True)
    yield from _faithful_at_thresholds()
    text = _changed(words().function, WORDS=_as_bytes_of_length)
    yield Case("other outputs", "bytes of one length", words(), text, is_faithful=True)


def _faithful_at_thresholds() -> Iterator[Case]:
    """Yield conversions of sources with steps that differ from them by rounding, right beside a step or on none."""
    for source in (forest(compares_inputs=True), counted_forest()):
        yield Case("thresholds", "the same trees", source, source.function, is_faithful=True)
    halves, quarters = counted_forest(0.5), counted_forest(0.25)
    yield Case("thresholds", "others between whole numbers", halves, quarters.function, is_faithful=True)
    scaled = scaled_forest(np.float64)
    yield Case(
        "thresholds", "numbers are scaled in FP32", scaled, scaled_forest(np.float32).function, is_faithful=True
    )
    labelled = layered_models()["classes"]
    rounded = _labels_of_rounded(labelled.rounded(EXACT))
    yield Case("near ties", "labels of rounded scores", labelled.source(), rounded, is_faithful=True)


def _labels_of_rounded(function: Function) -> Function:
    """Return a conversion whose scores are rounded, and whose labels follow from the rounded ones."""

    def call(inputs: Arrays) -> Arrays:
        answer = dict(function(inputs))
        answer["PROBABILITIES"] = _noise(1e-6)(answer["PROBABILITIES"])
        chosen = answer["PROBABILITIES"].argmax(-1)
        names = np.array([f"class-{place}".encode() for place in range(10)], object)
        return answer | {"LABEL": chosen.astype(np.int64), "NAME": names[chosen]}

    return call


def _as_bytes_of_length(values: Array) -> Array:
    # Zeros at the end are lost in bytes of a fixed length: not here, where one word ends with a zero.
    return np.array([bytes(each) for each in values.ravel()], object).reshape(values.shape)


# --- sabotaged ------------------------------------------------------------------------------------------------------


def sabotaged() -> Iterator[Case]:
    """Yield conversions with a fault."""
    yield from _columns()
    yield from _quantized()
    yield from _batches()
    yield from _tails()
    yield from _exact()
    yield from _inputs()
    yield from _boundaries()
    yield from _not_shown()


def _on_column(change: Callable[[Array], Array], *, axis: int, column: int) -> Callable[[Array], Array]:
    def changed(values: Array) -> Array:
        made = np.moveaxis(values.copy(), axis, -1)
        made[..., column] = change(made[..., column])
        return np.ascontiguousarray(np.moveaxis(made, -1, axis)).astype(values.dtype)

    return changed


def _columns() -> Iterator[Case]:
    places = {
        "people": ("Y", -1, 2, 0.3, 0.5),
        "scores": ("SCORES", -1, 3, 1.0, 0.0),
        "detections": ("BOXES", -1, 5, 0.2, 0.5),
        "planes": ("PLANES", 1, 4, 0.2, 0.5),
        "vectors": ("VECTOR", -1, 7, 0.12, 0.0),
    }
    for name, (output, axis, column, spread, mean) in places.items():
        model = layered_models()[name]
        faults: dict[str, Callable[[Array], Array]] = {
            "is 0": np.zeros_like,
            "is constant": lambda values, mean=mean: np.full_like(values, mean),
            "has the other sign": lambda values: -values,
            "is mirrored at its mean": lambda values, mean=mean: 2 * mean - values,
            "is shuffled": _rolled,
        }
        small: dict[str, Callable[[Array], Array]] = {
            "is 3 % too small": lambda values: values * np.float32(0.97),
            "is shifted by 5 % of its spread": lambda values, spread=spread: values + 0.05 * spread,
        }
        for precision, rounding in ((_P.FP32, EXACT), (_P.FP16, FP16), (_P.INT8, INT8)):
            kept = faults | (small if precision is _P.FP32 else {})
            for what, fault in kept.items():
                if name == "vectors" and what == "is constant":
                    continue  # Its mean is 0.
                change = {output: _on_column(fault, axis=axis, column=column)}
                function = _changed(model.rounded(rounding), **change)
                kind = f"columns, {precision.value}"
                yield Case(kind, f"column {column} {what}", model.source(), function, precision)


def _rolled(values: Array) -> Array:
    """Return numbers of the same distribution that have nothing to do with the inputs."""
    places = (np.abs(values.astype(np.float64)) * 1e5).astype(np.int64)
    noise = np.sin(places.astype(np.float64)) * 1.4
    return (0.5 + 0.3 * noise).astype(values.dtype)


def _quantized() -> Iterator[Case]:
    models = layered_models()
    for name in ("people", "scores", "number", "detections", "vectors"):
        model, source = models[name], models[name].source()
        (output,) = source.function({key: value[None] for key, value in source.samples[0].items()})
        for what, change in {
            "x 0.7": lambda values: values * np.float32(0.7),
            "x 1.3": lambda values: values * np.float32(1.3),
            "wrong sign": lambda values: -values,
        }.items():
            if name == "vectors" and what != "wrong sign":
                continue
            yield Case("int8", what, source, _changed(model.rounded(INT8), **{output: change}), _P.INT8)
        yield Case("int8", "zero point of activations off by 25", source, model.rounded(INT8, shift=25), _P.INT8)
        step = _step(model, output)
        shifted = _changed(model.rounded(INT8), **{output: lambda values, step=step: values + 5 * step})
        if name != "detections":
            yield Case("int8", "zero point of the output off by 5", source, shifted, _P.INT8)
    people = models["people"]
    step = _step(people, "Y")
    coarse = _changed(people.rounded(INT8), Y=lambda values: (np.round(values / step) * step).astype(values.dtype))
    yield Case("int8", "output with one scale", people.source(), coarse, _P.INT8)
    for name in ("people", "scores", "classes", "number"):
        yield Case("int8", "weights of two bits", models[name].source(), models[name].rounded(COARSE), _P.INT8)


def _step(model: LayeredModel, output: str) -> float:
    """Return the step of int8 for an output with one scale."""
    rows = np.stack([sample["X"] for sample in model.samples])
    values = model.head(model.layers(rows))[output]
    return float(values.max() - values.min()) / 255


def _batches() -> Iterator[Case]:
    def wrong_at(size: int) -> Callable[[Array], Array]:
        return lambda values: np.roll(values, 1, 0) if len(values) == size else values

    faults: dict[str, Callable[[Array], Array]] = {
        **{f"wrong for a batch of {size}": wrong_at(size) for size in (2, 3, 4, 5, 8, 16, 32)},
        "buffer of 8 rows": lambda values: (
            np.concatenate([values[:8], values[:8].repeat(4, 0)[: len(values) - 8]]) if len(values) > 8 else values
        ),
        "zeros above row 8": lambda values: np.concatenate([values[:8], np.zeros_like(values[8:])]),
        "zeros above row 16": lambda values: np.concatenate([values[:16], np.zeros_like(values[16:])]),
        "buffer of 16 rows": lambda values: values[np.arange(len(values)) % 16],
        "last row is the first one": lambda values: np.concatenate([values[:-1], values[:1]]),
        "rows are reversed": lambda values: values[::-1],
        "mean of the batch in each row": lambda values: (
            (values + 0.1 * values.mean(0)).astype(values.dtype) if len(values) > 1 else values
        ),
        "odd rows above 4 are swapped": lambda values: values[_swapped(len(values))],
    }
    for name in ("people", "scores", "number"):
        model = layered_models()[name]
        for what, fault in faults.items():
            for precision, rounding in ((_P.FP32, EXACT), (_P.INT8, INT8)):
                if name == "people" or precision is _P.FP32:
                    function = _all(fault)(model.rounded(rounding))
                    yield Case("batches", what, model.source(), function, precision)
    one = replace(pictures(is_grey=False, count=1), name="one picture")
    for what in ("wrong for a batch of 4", "zeros above row 8", "last row is the first one", "rows are reversed"):
        yield Case("batches", f"{what}, a single sample", one, _all(faults[what])(one.function))


def _swapped(count: int) -> Array:
    places = np.arange(count)
    for row in range(5, count - 1, 2):
        places[row], places[row + 1] = places[row + 1], places[row]
    return places


def _tails() -> Iterator[Case]:
    model = amounts()
    faults: dict[str, Callable[[Array], Array]] = {
        "no less than 30": lambda values: np.maximum(values, np.float32(30)),
        "no more than half of the greatest": lambda values: np.minimum(values, np.float32(7e5)),
        "rounded to 100": lambda values: np.round(values / 100) * 100,
        "50 too much": lambda values: values + np.float32(50),
        "0.1 % too much": lambda values: values * np.float32(1.001),
        "small ones are 0": lambda values: np.where(values < 100, 0, values),
        "small ones are doubled": lambda values: np.where(values < 1000, 2 * values, values),
        "the mean": lambda values: np.full_like(values, 1e5),
    }
    for what, fault in faults.items():
        function = _changed(model.function, AMOUNT=lambda values, fault=fault: fault(values).astype(np.float32))
        for precision in (_P.FP32, _P.FP16, _P.INT8):
            if precision is _P.FP32 or what not in ("0.1 % too much", "rounded to 100", "50 too much"):
                yield Case("tails", what, model, function, precision)


def _exact() -> Iterator[Case]:
    texts: dict[str, Callable[[bytes], bytes]] = {
        "other bytes that are no UTF-8": lambda text: text.replace(b"\xff", b"\xfe"),
        "decoded with replacements": lambda text: text.decode(errors="replace").encode(),
        "without spaces at the end": bytes.rstrip,
        "in lower case": bytes.lower,
        "without zeros at the end": lambda text: text.rstrip(b"\x00"),
        "Latin-1": lambda text: text.decode("latin-1").encode(),
    }
    for what, change in texts.items():
        function = _changed(words().function, WORDS=_each(change))
        for precision in (_P.FP32, _P.INT8):
            yield Case("strings", what, words(), function, precision)
    numbers: dict[str, dict[str, Callable[[Array], Array]]] = {
        "rounded in place of floor": {"COUNT": lambda values: values + 1},
        "a day off at one time": {"COUNT": lambda values: values + (values == values.max())},
        "63 s off": {"SECONDS": lambda values: values + 63},
        "1 s off": {"SECONDS": lambda values: values + 1},
        "computed in FP32": {"SECONDS": lambda values: values.astype(np.float32).astype(np.float64)},
        "answered in FP32": {"SECONDS": lambda values: values.astype(np.float32)},
        "one INT32": {"COUNT": lambda values: values.astype(np.int32)},
    }
    for what, changes in numbers.items():
        yield Case("integers, FP64", what, moments(), _changed(moments().function, **changes))
    classes = layered_models()["classes"]
    labels: dict[str, dict[str, Callable[[Array], Array]]] = {
        "next class": {"LABEL": lambda values: (values + 1) % 10},
        "two classes are swapped": {"LABEL": _swapped_classes},
        "class 0 in one of 20 rows": {"LABEL": lambda values: np.where(values == 7, 0, values)},
        "names in another order": {"NAME": _each(lambda text: text.replace(b"-1", b"-3"))},
        "no class": {"LABEL": lambda values: values - 20},
    }
    for what, changes in labels.items():
        for precision, rounding in ((_P.FP32, EXACT), (_P.INT8, INT8)):
            function = _changed(classes.rounded(rounding), **changes)
            yield Case("classes", what, classes.source(), function, precision)
    for what, change in {
        "temperature": _sharper,
        "a class is never seen": lambda values: np.where(np.arange(10) == 3, 0, values).astype(np.float32),
        "uniform": lambda values: np.full_like(values, 0.1),
        "two classes are swapped": lambda values: values[:, [1, 0, *range(2, 10)]],
    }.items():
        for precision, rounding in ((_P.FP32, EXACT), (_P.FP16, FP16), (_P.INT8, INT8)):
            function = _changed(classes.rounded(rounding), PROBABILITIES=change)
            yield Case("classes", f"probabilities: {what}", classes.source(), function, precision)
    ties = tied_places()
    yield Case("ties", "the last of equal elements", ties, lambda inputs: {
        "PLACE": inputs["X"].shape[1] - 1 - inputs["X"][:, ::-1].argmax(1)
    })  # fmt: skip


def tied_places() -> GateModel:
    """Return the place of the greatest element, of samples without ties."""
    rows = np.random.default_rng(21).normal(size=(64, 6)).astype(np.float32)
    return GateModel("places", lambda inputs: {"PLACE": inputs["X"].argmax(1)}, [{"X": row} for row in rows])


def _swapped_classes(values: Array) -> Array:
    return np.where(values == 1, 2, np.where(values == 2, 1, values))


def _sharper(values: Array) -> Array:
    powers = np.square(values.astype(np.float64))
    return np.asarray(powers / powers.sum(-1, keepdims=True), np.float32)


def _each(change: Callable[[bytes], bytes]) -> Callable[[Array], Array]:
    def changed(values: Array) -> Array:
        made = np.empty(values.shape, object)
        made.ravel()[:] = [change(each) for each in values.ravel()]
        return made

    return changed


def _inputs() -> Iterator[Case]:
    without: Function = lambda inputs: masked_mean({**inputs, "MASK": np.ones_like(inputs["MASK"])})  # noqa: E731
    first: Function = lambda inputs: masked_mean({name: array[:, :12] for name, array in inputs.items()})  # noqa: E731
    shown = tokens(is_masked=True, is_of_one_length=False)
    hidden = tokens(is_masked=False, is_of_one_length=True)
    for precision in (_P.FP32, _P.FP16, _P.INT8):
        yield Case("masks", "the mask is ignored", shown, without, precision)
        yield Case("masks", "the mask is ignored, samples without zeros", hidden, without, precision)
    yield Case("lengths", "tokens after the twelfth are ignored", shown, first)
    yield Case("lengths", "tokens after the twelfth are ignored, one length", hidden, first)
    yield Case("lengths", "answers of one length", hidden, _fixed_length)
    backwards: Function = lambda inputs: picture_features({"IMAGE": inputs["IMAGE"][:, ::-1]})  # noqa: E731
    red: Function = lambda inputs: picture_features({"IMAGE": np.repeat(inputs["IMAGE"][:, :1], 3, 1)})  # noqa: E731
    for precision in (_P.FP32, _P.FP16):
        for function, what in ((backwards, "channels in another order"), (red, "the first channel only")):
            yield Case("channels", what, pictures(is_grey=False), function, precision)
            yield Case("channels", f"{what}, grey samples", pictures(is_grey=True), function, precision)
    single = pictures(is_grey=False, count=1)
    answer = single.function({"IMAGE": single.samples[0]["IMAGE"][None]})["FEATURES"]
    equal = replace(single, name="equal pictures", samples=single.samples * 20)
    for model in (single, equal):
        constant: Function = lambda inputs: {"FEATURES": np.repeat(answer, len(inputs["IMAGE"]), 0)}  # noqa: E731
        yield Case("few samples", f"the answer to a sample, {model.name}", model, constant)
    scores = layered_models()["scores"]
    for what, most in (("inputs are clipped at 4", 4.0), ("inputs are clipped at 5", 5.0)):
        clipped: Function = lambda inputs, most=most: scores.rounded(EXACT)({"X": np.clip(inputs["X"], -most, most)})  # noqa: E731
        yield Case("ranges", what, scores.source(), clipped)


def _fixed_length(inputs: Arrays) -> Arrays:
    """Read as many tokens as the samples have, others as if they were the first ones."""
    places = np.arange(inputs["IDS"].shape[1]) % 12 % 11
    return masked_mean({name: array[:, places] for name, array in inputs.items()})


def _boundaries() -> Iterator[Case]:
    or_equal: Function = lambda inputs: forest_sum(inputs, np.less_equal)  # noqa: E731
    yield Case("thresholds", "`<=` in place of `<`", forest(compares_inputs=True), or_equal)
    whole: Function = lambda inputs: forest_sum(inputs, np.less_equal, WHOLE_SPLITS)  # noqa: E731
    yield Case("thresholds", "`<=` in place of `<`, whole numbers", counted_forest(), whole)
    yield Case("thresholds", "`<=` in place of `<`, of any source", forest(), or_equal, gap="thresholds of 'X'")
    few = replace(forest(compares_inputs=True), function=lambda inputs: forest_sum(inputs, trees=12), name="12 trees")
    one: Function = lambda inputs: forest_sum(inputs, _less_but_one, trees=12)  # noqa: E731
    yield Case("thresholds", "`<=` of one threshold of 12", few, one)
    classes = layered_models()["classes"]
    second = _second_at_ties(classes.rounded(EXACT), 1e-3)
    yield Case("near ties", "the second class where two differ by less than 0.001", classes.source(), second)
    coarse = layered_models()["people"]
    for count in (3, 4, 6):
        levels = _on_column(_in_levels(count), axis=-1, column=1)
        function = _changed(coarse.rounded(INT8), Y=levels)
        yield Case("int8", f"a column of {count} numbers", coarse.source(), function, _P.INT8)


def _less_but_one(values: Array, splits: Array) -> Array:
    found = values < splits
    found[..., 0] = values[..., 0] <= splits[0]
    return np.asarray(found)


def _second_at_ties(function: Function, gap: float) -> Function:
    def call(inputs: Arrays) -> Arrays:
        answer = dict(function(inputs))
        scores = answer["PROBABILITIES"]
        ordered = np.sort(scores, -1)
        is_tie = ordered[:, -1] - ordered[:, -2] < gap
        chosen = np.where(is_tie, scores.argsort(-1)[:, -2], answer["LABEL"])
        return answer | {"LABEL": chosen.astype(np.int64)}

    return call


def _in_levels(count: int) -> Callable[[Array], Array]:
    """Return rounding to a few numbers over the range of the samples: 30 plus and minus 3 times 5."""
    return lambda values: np.round(np.clip((values - 15) / 30, 0, 1) * (count - 1)) / (count - 1) * 30 + 15


def _not_shown() -> Iterator[Case]:
    counts = [0]

    def stale(inputs: Arrays) -> Arrays:
        """Repeat the answer to the first row, once in 100,000 requests."""
        counts[0] += 1
        return picture_features(inputs if counts[0] % 100_000 else {"IMAGE": inputs["IMAGE"] * 0})

    yield Case("rare", "one wrong answer in 100,000", pictures(is_grey=False), stale, gap="now and then")
    table: Function = lambda inputs: masked_mean({**inputs, "IDS": np.minimum(inputs["IDS"], 39)})  # noqa: E731
    shown = tokens(is_masked=True, is_of_one_length=False)
    yield Case("vocabulary", "tokens from 40 on are read as 39", shown, table, gap="integers of 'IDS'")
    other = replace(words(), samples=[{"PLACES": np.abs(each["PLACES"]) % 4} for each in words().samples])
    short = _changed(other.function, WORDS=_each(lambda text: text.strip()))
    yield Case("vocabulary", "words that no sample has", other, short, gap="integers of 'PLACES'")
