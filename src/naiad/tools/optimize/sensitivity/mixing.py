"""The search: conversions that keep some nodes in higher precision, judged one after the other."""

import contextlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from naiad.tools.optimize.candidate import Candidate, Conversion, Precision, Status
from naiad.tools.optimize.converters.conversions import Converter
from naiad.tools.optimize.optimize_progress import Progress
from naiad.tools.optimize.optimize_result import CurvePoint
from naiad.tools.optimize.optimize_source import Format
from naiad.tools.optimize.results.verdict import Verdict
from naiad.tools.optimize.sensitivity.kept_nodes import KeptNode, keep_few

Judge = Callable[[Conversion], Verdict]
Measure = Callable[[Conversion], float]
"""Median time of a call with one sample, in us."""

_PRECISIONS = (Precision.FP16, Precision.INT8, Precision.INT8_DYNAMIC)


def is_searchable(candidate: Candidate, after: Conversion) -> bool:
    """Return whether nodes of a rejected candidate can be kept in higher precision: it is made from an ONNX file."""
    is_openvino = candidate.format is Format.OPENVINO and candidate.precision is Precision.INT8
    is_lower = candidate.format is Format.ONNX and candidate.precision in _PRECISIONS
    return (is_lower or is_openvino) and bool(candidate.after) and after.candidate.format is Format.ONNX


def search(
    converter: Converter,
    candidate: Candidate,
    after: Conversion,
    judge: Judge,
    *,
    max_steps: int,
    measure: Measure | None = None,
    progress: Progress | None = None,
) -> tuple[Conversion | None, Verdict | None, Sequence[CurvePoint]]:
    """Return the accepted conversion that keeps the fewest nodes, its verdict, and all steps.

    `after` is the conversion that the rejected candidate is made from. The new candidate is `<old>-mixed`; its
    setting `keep_nodes` has the names. A step is a conversion and a verdict. The curve is in the order of the share
    in lower precision, from all of the nodes downwards. The result is (None, None, curve) if no step is accepted, if
    the nodes of the graph cannot be read, or if the candidate is not searchable.
    """
    progress = progress or Progress()
    if not is_searchable(candidate, after):
        return None, None, ()
    nodes = _nodes(converter, candidate, after, progress)
    if not nodes:
        return None, None, ()
    trials = _Trials(converter, candidate, after, judge, measure, progress, [each.name for each in nodes], max_steps)
    with contextlib.suppress(_StepsSpentError):
        keep_few(nodes, trials.accepts)
    curve = sorted(trials.curve, key=lambda point: point.share, reverse=True)
    return (*trials.best, curve) if trials.best else (None, None, curve)


def _nodes(converter: Converter, candidate: Candidate, after: Conversion, progress: Progress) -> list[KeptNode]:
    """Return the nodes with their errors in lower precision; the estimate is a conversion, and cached as one."""
    name, is_prepared = f"{candidate.name}-nodes", candidate.format is Format.ONNX
    settings = {"step": "node-errors", "is_prepared": is_prepared}
    needs = ("onnx", "onnxruntime")
    estimate = Candidate(name, Format.ONNX, candidate.precision, "", settings, candidate.after, needs)
    progress.step("search", name, 0, 1)
    made = converter.convert(estimate, after)
    if made.status is not Status.CONVERTED:
        progress.done("search", name, made.reason, was_cached=False)
        return []
    nodes = [
        KeptNode(each["name"], float(each["error"])) for each in json.loads((made.folder / "nodes.json").read_text())
    ]
    progress.done("search", name, f"{len(nodes)} nodes", was_cached=False)
    return nodes


class _StepsSpentError(Exception):
    """No step is left."""


class _Trials:
    """The steps, and the best of them."""

    def __init__(
        self,
        converter: Converter,
        candidate: Candidate,
        after: Conversion,
        judge: Judge,
        measure: Measure | None,
        progress: Progress,
        names: Sequence[str],
        max_steps: int,
    ) -> None:
        self.curve: list[CurvePoint] = []
        self.best: tuple[Conversion, Verdict] | None = None
        self._converter = converter
        self._candidate = candidate
        self._after = after
        self._judge = judge
        self._measure = measure
        self._progress = progress
        self._names = names
        """In topological order."""
        self._max_steps = max_steps
        self._known: dict[frozenset[str], bool] = {}
        self._fewest = len(names) + 1

    def accepts(self, kept: Sequence[str]) -> bool:
        """Convert and judge, once for the same nodes. Raises _StepsSpentError."""
        key = frozenset(kept)
        if key not in self._known:
            if len(self.curve) == self._max_steps:
                raise _StepsSpentError
            self._known[key] = self._try([name for name in self._names if name in key])
        return self._known[key]

    def _try(self, kept: Sequence[str]) -> bool:
        mixed = self._candidate
        if kept:
            settings = {**mixed.settings, "keep_nodes": list(kept)}
            mixed = replace(mixed, name=f"{mixed.name}-mixed", settings=settings)
        self._progress.step("search", mixed.name, len(self.curve), self._max_steps)
        made = self._converter.convert(mixed, self._after)
        verdict = self._judge(made) if made.status is Status.CONVERTED else None
        point = self._point(kept, made, verdict)
        self.curve.append(point)
        if verdict and point.is_accepted and len(kept) < self._fewest:
            self.best, self._fewest = (made, verdict), len(kept)
        what = "accepted" if point.is_accepted else made.reason or "rejected"
        message = f"{len(kept)} of {len(self._names)} nodes in higher precision: {what}"
        self._progress.done("search", mixed.name, message, was_cached=False)
        return point.is_accepted

    def _point(self, kept: Sequence[str], made: Conversion, verdict: Verdict | None) -> CurvePoint:
        share = 1 - len(kept) / len(self._names)
        if verdict is None:
            return CurvePoint(kept, share, math.inf, False, 0.0)
        latency_us = self._measure(made) if self._measure else 0.0
        return CurvePoint(kept, share, _error(verdict), verdict.is_accepted, latency_us)


def _error(verdict: Verdict) -> float:
    if verdict.metric is not None and verdict.source_metric is not None:
        return verdict.source_metric - verdict.metric
    return max(verdict.worst_relative.values(), default=math.inf)
