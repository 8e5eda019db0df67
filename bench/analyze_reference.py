"""The choice of `naiad analyze` against the whole grid, for five kinds of models on two cores.

    python -m bench.analyze_reference [--models resnet50,minilm,trees,python,ocr] [--seconds 0.4] [--concurrency 8]

| model | what it is |
|---|---|
| resnet50 | the architecture with random weights, ONNX, pictures of 224 x 224 |
| minilm | MiniLM in int8, ONNX, sentences of 32 tokens |
| trees | a forest of XGBoost |
| python | an add/sub model in Python |
| ocr | an ensemble of three ONNX models and four Python models; a line of text |

Each begins with one instance and without dynamic batching. Every configuration of the grid is measured once at one
concurrency; the mode `predict` searches the same grid without these measurements. The first five of the grid, the
choice and the configuration at the beginning are then measured in turns, and medians are compared. `trees` needs
xgboost and scikit-learn, `minilm` and `ocr` the packages of `naiad demo`.
"""

import argparse
import asyncio
import re
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.models import write_repository
from naiad.analyze.goal import Bound, Goal
from naiad.analyze.live import LiveInstrument, OwnServer
from naiad.analyze.measurement import Measured
from naiad.analyze.prediction import LearnedPredictor
from naiad.analyze.search import SearchSettings, search
from naiad.analyze.search.configurations import Configuration, configuration_key, configurations
from naiad.analyze.space import Dimension, Point, Space
from naiad.analyze.variants import Machine, combinations, default_dimensions
from naiad.backend.cores import usable_cores
from naiad.config.model_config_pb2 import ModelConfig
from naiad.demo import invoice, ocr_repository
from naiad.demo.formats import forests
from naiad.demo.formats.classifier import train
from naiad.demo.packages import MINILM, fetch
from naiad.demo.repository import new_model
from naiad.perf.plan import InputSettings, ModelPlan

_FINALISTS = 5
_MINILM_CONFIG = """backend: "onnxruntime" max_batch_size: 16
input [ { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] },
        { name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] },
        { name: "token_type_ids" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "last_hidden_state" data_type: TYPE_FP32 dims: [ -1, 384 ] } ]
"""
_MINILM_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_VARIED_OF_OCR = ("ocr_detect", "ocr_read")


def _resnet50(root: Path) -> ModelPlan:
    write_repository(root, ["resnet50"])
    return ModelPlan("resnet50")


def _minilm(root: Path) -> ModelPlan:
    (model,) = fetch(MINILM).values()
    (new_model(root, "minilm", _MINILM_CONFIG) / "model.onnx").symlink_to(model)
    shapes = dict.fromkeys(_MINILM_INPUTS, (32,))
    return ModelPlan("minilm", inputs=InputSettings(shapes=shapes, integer_bounds=dict.fromkeys(_MINILM_INPUTS, 2)))


def _trees(root: Path) -> ModelPlan:
    forests.write_xgboost(train(), new_model(root, "trees", 'backend: "trees" max_batch_size: 32') / "xgboost.json")
    return ModelPlan("trees")


def _python(root: Path) -> ModelPlan:
    write_repository(root, ["add_sub_py"])
    return ModelPlan("add_sub_py")


def _ocr(root: Path) -> ModelPlan:
    ocr_repository.build(root)
    data = root.parent / "page"
    data.mkdir()
    np.save(data / "IMAGE.npy", np.asarray(invoice.draw())[40:120, :480])
    return ModelPlan("ocr", inputs=InputSettings(sources=(str(data),)))


@dataclass(frozen=True, slots=True)
class Reference:
    """A model of the comparison."""

    write: Callable[[Path], ModelPlan]
    """Writes it to a repository, and returns what is under load."""
    p99_ms: float
    largest_batch: int = 16


REFERENCES = {
    "resnet50": Reference(_resnet50, 1500.0, 4),
    "minilm": Reference(_minilm, 200.0),
    "trees": Reference(_trees, 50.0),
    "python": Reference(_python, 50.0),
    "ocr": Reference(_ocr, 10_000.0),
}


class Comparison:
    """Grid and search of one model."""

    def __init__(
        self, instrument: LiveInstrument, model: str, reference: Reference, arguments: argparse.Namespace
    ) -> None:
        self._instrument, self._model, self._arguments = instrument, model, arguments
        self._limit_ms = reference.p99_ms
        dimensions: list[Dimension] = []
        variants = {}
        for name, config in instrument.configs.items():
            own = _dimensions(config, reference.largest_batch)
            if own:
                variants[name] = combinations(config, own).all
                dimensions += own
        self._space = Space((model,), tuple(dimensions), (arguments.concurrency,), variants=variants)
        self._goals = {model: Goal(constraints={"perf_latency_p99": Bound(maximum=reference.p99_ms)})}

    async def run(self) -> str:
        """Measure; return a row of the table."""
        everything = configurations(self._space)
        grid = [each for each in [await self._measure(each) for each in everything] if not each.error]
        best = sorted(grid, key=self._value, reverse=True)[:_FINALISTS]
        choice, count = await self._search()
        first = everything[0]
        medians = await self._medians([first, choice, *(each.point.variants for each in best)])
        optimum, chosen = max(medians.values()), medians[configuration_key(choice)]
        changes = "; ".join(each.summary for each in choice if each.settings)
        return (
            f"{self._model:10} grid {len(everything)} ({len(everything) - len(grid)} failed), search {count} "
            f"({count / len(everything):.0%}), choice {chosen:.1f}/s = {chosen / optimum:.0%} of the optimum, "
            f"{chosen / medians[configuration_key(first)]:.2f} times the beginning: {changes or 'as configured'}"
        )

    async def _measure(self, configuration: Configuration) -> Measured:
        point = Point(configuration, self._arguments.concurrency)
        return await self._instrument.measure(point, self._arguments.seconds)

    def _value(self, measured: Measured) -> float:
        """Return the throughput; 0 outside the limit."""
        metrics = measured.metrics[self._model]
        return metrics["perf_throughput"].value if metrics["perf_latency_p99"].value <= self._limit_ms else 0.0

    async def _search(self) -> tuple[Configuration, int]:
        predictor = LearnedPredictor(self._instrument.configs, usable_cores())
        settings = SearchSettings(seconds=self._arguments.seconds)
        ranking = await search("predict", self._space, self._goals, self._instrument, settings, predictor=predictor)
        count = sum(each.repeats for each in ranking.measurements)
        if ranking.winner is None:
            raise RuntimeError(f"{self._model}: {ranking.reason}")
        return ranking.winner.measured.point.variants, count

    async def _medians(self, found: Sequence[Configuration]) -> dict[str, float]:
        named = {configuration_key(each): each for each in found}
        values: dict[str, list[float]] = {name: [] for name in named}
        for _ in range(self._arguments.rounds):
            for name, configuration in named.items():
                measured = await self._measure(configuration)
                values[name].append(0.0 if measured.error else self._value(measured))
        return {name: statistics.median(each) for name, each in values.items()}


def _dimensions(config: ModelConfig, largest_batch: int) -> Sequence[Dimension]:
    if config.HasField("ensemble_scheduling") or (
        config.name.startswith("ocr") and config.name not in _VARIED_OF_OCR
    ):
        return ()
    return default_dimensions(config, Machine(usable_cores()), batch_sizes=(1, largest_batch))


async def compare(name: str, arguments: argparse.Namespace) -> str:
    """Compare one model."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory, "models")
        root.mkdir()
        plan = REFERENCES[name].write(root)
        for path in root.glob("*/config.pbtxt"):
            path.write_text(re.sub(r"dynamic_batching \{.*\}", "", path.read_text()))
        async with LiveInstrument(OwnServer([root]), [plan]) as instrument:
            return await Comparison(instrument, plan.name, REFERENCES[name], arguments).run()


def main() -> int:
    """Read the arguments and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(REFERENCES))
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    for name in arguments.models.split(","):
        print(asyncio.run(compare(name, arguments)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
