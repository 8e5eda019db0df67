"""The choice of `naiad analyze` against the whole grid, for five kinds of models on two cores.

    python -m bench.analyze_reference [--models resnet50,minilm,trees,python,ocr] [--seconds 5] [--turns 3]
                                      [--searches 20] [--rounds 5] [--save DIR | --replay DIR]

| model | what it is |
|---|---|
| resnet50 | the architecture with random weights, ONNX, pictures of 224 x 224 |
| minilm | MiniLM in int8, ONNX, sentences of 32 tokens |
| trees | a forest of XGBoost |
| python | an add/sub model in Python |
| ocr | an ensemble of three ONNX models and four Python models; a line of text |

Each begins with one instance and without dynamic batching. Every configuration of the grid is measured at one
concurrency, in several turns. The mode `predict` searches the same grid: once on the server, and `--searches` times
on the record, where a measurement of a configuration is one of its turns by chance. The first twelve of the grid, all
choices and the configuration at the beginning are then measured again in turns, and the medians of these are
compared, because the best of the grid owes its place to chance, too. `trees` needs xgboost and scikit-learn,
`minilm` and `ocr` the packages of `naiad demo`. `--save` keeps the measurements, and `--replay` searches on them
again without a server, as after a change of the search; choices that were not measured again then have the median of
their turns.
"""

import argparse
import asyncio
import pickle
import random
import re
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from bench.models import write_repository
from naiad.backend.cores import usable_cores
from naiad.config.model_config_pb2 import ModelConfig
from naiad.tools.analyze.goal import Bound, Goal
from naiad.tools.analyze.live import LiveInstrument, OwnServer
from naiad.tools.analyze.measurement import Instrument, Measured
from naiad.tools.analyze.search import SearchSettings, search
from naiad.tools.analyze.search.configurations import Configuration, configuration_key, configurations
from naiad.tools.analyze.simulation import LearnedPredictor
from naiad.tools.analyze.space import Dimension, Point, Space
from naiad.tools.analyze.variants import Machine, combinations, default_dimensions
from naiad.tools.demo import ocr
from naiad.tools.demo.formats import writers
from naiad.tools.demo.formats.classifier import train
from naiad.tools.demo.packages import MINILM, fetch
from naiad.tools.demo.repository import new_model
from naiad.tools.perf.plan import InputSettings, ModelLoad

_FINALISTS = 12
_MINILM_CONFIG = """backend: "onnxruntime" max_batch_size: 16
input [ { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] },
        { name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] },
        { name: "token_type_ids" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "last_hidden_state" data_type: TYPE_FP32 dims: [ -1, 384 ] } ]
"""
_MINILM_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_VARIED_OF_OCR = ("ocr_detect", "ocr_read")


def _resnet50(root: Path) -> ModelLoad:
    write_repository(root, ["resnet50"])
    return ModelLoad("resnet50")


def _minilm(root: Path) -> ModelLoad:
    (model,) = fetch(MINILM).values()
    (new_model(root, "minilm", _MINILM_CONFIG) / "model.onnx").symlink_to(model)
    shapes = dict.fromkeys(_MINILM_INPUTS, (32,))
    return ModelLoad("minilm", inputs=InputSettings(shapes=shapes, integer_bounds=dict.fromkeys(_MINILM_INPUTS, 2)))


def _trees(root: Path) -> ModelLoad:
    writers.write_xgboost(train(), new_model(root, "trees", 'backend: "trees" max_batch_size: 32') / "xgboost.json")
    return ModelLoad("trees")


def _python(root: Path) -> ModelLoad:
    write_repository(root, ["add_sub_py"])
    return ModelLoad("add_sub_py")


def _ocr(root: Path) -> ModelLoad:
    ocr.build(root)
    data = root.parent / "page"
    data.mkdir()
    np.save(data / "IMAGE.npy", np.asarray(ocr.draw())[40:120, :480])
    return ModelLoad("ocr", inputs=InputSettings(sources=(str(data),)))


@dataclass(frozen=True, slots=True)
class Reference:
    """A model of the comparison."""

    write: Callable[[Path], ModelLoad]
    """Writes it to a repository, and returns what is under load."""
    p99_ms: float
    largest_batch: int = 16
    concurrency: int = 8


REFERENCES = {
    "resnet50": Reference(_resnet50, 1500.0, 4),
    "minilm": Reference(_minilm, 200.0),
    "trees": Reference(_trees, 50.0),
    "python": Reference(_python, 50.0),
    "ocr": Reference(_ocr, 10_000.0, concurrency=4),
}


@dataclass(slots=True)
class Record:
    """The grid of a model as it was measured."""

    model: str
    cores: float
    configs: Mapping[str, ModelConfig]
    space: Space
    limit_ms: float
    """Of the p99 latency."""
    turns: dict[str, list[Measured]] = field(default_factory=dict)
    """By configuration, configurations of the grid."""
    again: dict[str, list[Measured]] = field(default_factory=dict)
    """By configuration, what was measured after the searches."""

    @property
    def goals(self) -> dict[str, Goal]:
        """Return what a search looks for."""
        return {self.model: Goal(constraints={"perf_latency_p99": Bound(maximum=self.limit_ms)})}

    def value(self, name: str) -> float:
        """Return the median throughput of a configuration, from what was measured last; 0 outside the limit."""
        measured = self.again.get(name) or self.turns[name]
        metrics = [each.metrics[self.model] for each in measured if not each.error]
        if not metrics or statistics.median(each["perf_latency_p99"].value for each in metrics) > self.limit_ms:
            return 0.0
        return statistics.median(each["perf_throughput"].value for each in metrics)

    def best(self) -> list[str]:
        """Return configurations, the best first: the grid, or what was measured again."""
        return sorted(self.again or self.turns, key=self.value, reverse=True)

    async def search(self, instrument: Instrument, seconds: float) -> tuple[Configuration, int]:
        """Return the choice of a search, and how many measurements it made."""
        predictor = LearnedPredictor(self.configs, self.cores)
        settings = SearchSettings(seconds=seconds)
        ranking = await search("predict", self.space, self.goals, instrument, settings, predictor=predictor)
        count = sum(each.repeats for each in ranking.measurements)
        if ranking.winner is None:
            raise RuntimeError(f"{self.model}: {ranking.reason}")
        return ranking.winner.measured.point.variants, count


class Recorded:
    """An instrument that measures nothing: it draws from the turns of the grid, and repeats none before it must."""

    def __init__(self, record: Record, seed: int) -> None:
        self._record = record
        self._random = random.Random(seed)
        self._left: dict[str, list[Measured]] = {}

    async def measure(self, point: Point, seconds: float) -> Measured:
        """Return one of the turns of a configuration."""
        name = configuration_key(point.variants)
        left = self._left.get(name)
        if not left:
            left = self._left[name] = list(self._record.turns[name])
            self._random.shuffle(left)
        return replace(left.pop(), point=point)

    async def restore(self) -> None:
        """Nothing was changed."""


async def measure(name: str, arguments: argparse.Namespace) -> tuple[Record, str]:
    """Measure the grid, search, and measure what was found again."""
    reference = REFERENCES[name]
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory, "models")
        root.mkdir()
        plan = reference.write(root)
        for path in root.glob("*/config.pbtxt"):
            path.write_text(re.sub(r"dynamic_batching \{.*\}", "", path.read_text()))
        async with LiveInstrument(OwnServer([root]), [plan]) as instrument:
            space = _space(plan.name, instrument.configs, reference)
            record = Record(plan.name, usable_cores(), dict(instrument.configs), space, reference.p99_ms)
            grid = configurations(space)
            seconds = arguments.seconds
            await _measure_in_turns(record.turns, instrument, space, grid, arguments.turns, seconds)
            live, _ = await record.search(instrument, seconds)
            found = await asyncio.to_thread(searches, record, arguments)
            named = {configuration_key(each): each for each in [grid[0], live, *(choice for choice, _ in found)]}
            best = set(record.best()[:_FINALISTS])
            named |= {configuration_key(each): each for each in grid if configuration_key(each) in best}
            await _measure_in_turns(record.again, instrument, space, list(named.values()), arguments.rounds, seconds)
    return record, configuration_key(live)


def searches(record: Record, arguments: argparse.Namespace) -> list[tuple[Configuration, int]]:
    """Return the choices of searches on a record, each with the number of measurements."""
    with ProcessPoolExecutor() as processes:
        return list(processes.map(partial(_search, record, arguments.seconds), range(arguments.searches)))


def _search(record: Record, seconds: float, seed: int) -> tuple[Configuration, int]:
    return asyncio.run(record.search(Recorded(record, seed), seconds))


async def _measure_in_turns(
    found: dict[str, list[Measured]],
    instrument: LiveInstrument,
    space: Space,
    chosen: Sequence[Configuration],
    turns: int,
    seconds: float,
) -> None:
    (concurrency,) = space.concurrencies
    for turn in range(turns):
        for each in chosen if turn % 2 == 0 else reversed(chosen):
            measured = await instrument.measure(Point(each, concurrency), seconds)
            found.setdefault(configuration_key(each), []).append(measured)


def report(record: Record, live: str, found: Sequence[tuple[Configuration, int]]) -> str:
    """Return what was chosen, beside the best of the grid."""
    optimum = record.value(record.best()[0])
    first = next(iter(record.turns))
    gain = (
        f"{record.value(live) / record.value(first):.2f}" if record.value(first) else "from outside the limit, more"
    )
    names = {configuration_key(each): each for each in configurations(record.space)}
    counts = sorted({count for _, count in found})
    shares = [record.value(configuration_key(choice)) / optimum for choice, _ in found]
    lines = [
        f"{record.model}: grid of {len(record.turns)}; live choice {_summary(names[live])}: "
        f"{record.value(live):.1f}/s, {record.value(live) / optimum:.0%} of the optimum, {gain} the beginning"
    ]
    if found:
        lines.append(
            f"{record.model}: at least 95 % of the optimum in {sum(each >= 0.95 for each in shares)} of "
            f"{len(shares)} searches on the record, least {min(shares):.0%}, {counts[0]} to {counts[-1]} measurements"
        )
    lines += [
        f"    {record.value(name):8.1f}/s {record.value(name) / optimum:5.0%}  chosen {times} times: "
        f"{_summary(names[name])}"
        for name, times in Counter(configuration_key(choice) for choice, _ in found).most_common()
    ]
    best = record.best()[0]
    lines.append(f"    {record.value(best):8.1f}/s  100%  the best: {_summary(names[best])}")
    return "\n".join(lines)


def _summary(configuration: Configuration) -> str:
    return "; ".join(each.summary for each in configuration if each.settings) or "as configured"


def _space(model: str, configs: Mapping[str, ModelConfig], reference: Reference) -> Space:
    dimensions: list[Dimension] = []
    variants = {}
    for name, config in configs.items():
        own = _dimensions(config, reference.largest_batch)
        if own:
            variants[name] = combinations(config, own).all
            dimensions += own
    return Space((model,), tuple(dimensions), (reference.concurrency,), variants=variants)


def _dimensions(config: ModelConfig, largest_batch: int) -> Sequence[Dimension]:
    if config.HasField("ensemble_scheduling") or (
        config.name.startswith("ocr") and config.name not in _VARIED_OF_OCR
    ):
        return ()
    return default_dimensions(config, Machine(usable_cores()), batch_sizes=(1, largest_batch))


def main() -> int:
    """Read the arguments and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(REFERENCES))
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--searches", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--replay", type=Path)
    arguments = parser.parse_args()
    for name in arguments.models.split(","):
        if arguments.replay:
            record, live = pickle.loads((arguments.replay / f"{name}.pickle").read_bytes())
        else:
            record, live = asyncio.run(measure(name, arguments))
        if arguments.save:
            (arguments.save / f"{name}.pickle").write_bytes(pickle.dumps((record, live)))
        print(report(record, live, searches(record, arguments)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
