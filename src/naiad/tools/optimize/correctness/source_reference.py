"""What the source answers to the samples: the kinds, scales and classes of its outputs, read before a comparison."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from naiad.core.datatype import is_floating
from naiad.core.tensor import Array
from naiad.tools.optimize.correctness.judgement_settings import Settings
from naiad.tools.optimize.correctness.labels import LabelObserver, LabelRelation
from naiad.tools.optimize.correctness.runners.model_runner import Arrays, Runner
from naiad.tools.optimize.correctness.scores.scales import ScaleObserver, Scales
from naiad.tools.optimize.correctness.scores.tolerances import Kind, step_of

if TYPE_CHECKING:
    import numpy as np

_KEPT_BYTES = 64 << 20
"""Answers that are kept for the comparison; those beyond are asked for again."""


@dataclass(frozen=True, slots=True)
class OutputReference:
    """One output of the source."""

    kind: Kind
    is_double: bool
    scales: Scales = field(default_factory=Scales)
    step: float = 0.0
    """Relative distance of neighbouring numbers of a short datatype."""
    labels: LabelRelation | None = None
    """Of integers and strings that are the first class of another output."""


class SourceAnswers:
    """The source's answers to the samples, and what they have in common."""

    def __init__(self, source: Runner, settings: Settings) -> None:
        self.outputs: dict[str, OutputReference] = {}
        self._source = source
        self._settings = settings
        self._kept: list[Arrays] = []
        self._kept_bytes = 0
        self._scales: dict[str, ScaleObserver] = {}
        self._labels: dict[str, LabelObserver] = {}
        self._kinds: dict[str, Kind] = {}
        self._datatypes: dict[str, np.dtype[Any]] = {}
        self._answers = 0

    def observe(self, answer: Arrays) -> None:
        """Add an answer."""
        size = sum(array.nbytes for array in answer.values())
        if self._kept_bytes + size <= _KEPT_BYTES and len(self._kept) == self._answers:
            self._kept.append(answer)
            self._kept_bytes += size
        self._answers += 1
        for name, array in answer.items():
            self._observe(name, array, answer)

    def finish(self) -> None:
        """Make the references of what was added."""
        for name, kind in self._kinds.items():
            observer, labels = self._scales.get(name), self._labels.get(name)
            self.outputs[name] = OutputReference(
                kind,
                self._datatypes[name] == "float64",
                observer.scales() if observer else Scales(),
                step_of(self._datatypes[name]),
                labels.relation() if labels else None,
            )

    def answer(self, index: int, sample: Mapping[str, Array]) -> Arrays:
        """Return the answer to the sample at `index`. Raises RunnerError."""
        return self._kept[index] if index < len(self._kept) else self._source.infer(self.request(sample))

    def request(self, sample: Mapping[str, Array]) -> Arrays:
        """Return the request with one sample."""
        return {name: array[None] if self._settings.has_batch else array for name, array in sample.items()}

    def _observe(self, name: str, array: Array, answer: Arrays) -> None:
        kind = self._settings.kind_of(name, array)
        known = self._kinds.setdefault(name, kind)
        if kind is not known:  # The first answer looked like probabilities by chance.
            self._kinds[name] = Kind.NUMBERS
        self._datatypes.setdefault(name, array.dtype)
        if is_floating(array.dtype):
            self._scales.setdefault(name, ScaleObserver()).add(array)
        elif array.size and self._settings.has_exact_classes(name):
            others = {other: values for other, values in answer.items() if other != name}
            self._labels.setdefault(name, LabelObserver()).add(array, others)
