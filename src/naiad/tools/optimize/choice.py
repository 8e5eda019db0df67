"""The choice among candidates whose answers are right, from their figures with 95 % confidence intervals.

A candidate beats the source if the intervals of what the objective asks for do not overlap. Candidates whose
intervals overlap with that of the best one are equal: the one with the higher precision wins, then the one of the
simpler format. While other programs use the cores, CPU time per inference decides, and nothing wins without proof.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from naiad.tools.measure.result import Interval
from naiad.tools.optimize.candidate import Precision
from naiad.tools.optimize.optimize_result import SOURCE, Objective, Outcome, Strategy, baseline_of
from naiad.tools.optimize.optimize_source import Format
from naiad.tools.optimize.results.candidate_measurement import Profile, Round, Runtime, ServedMeasurement
from naiad.tools.optimize.results.rounds import MOST_OTHER_CORES, other_cores, ratios

_PRECISIONS = tuple(
    Precision[name] for name in ("FP32", "TF32", "MIXED", "FP16", "BF16", "INT8_DYNAMIC", "INT8")
)  # fmt: skip
"""From the highest to the lowest."""
_FORMATS = (
    Format.ONNX, Format.OPENVINO, Format.LITERT, Format.TORCHSCRIPT, Format.TORCH_EXPORT, Format.SAVED_MODEL,
    Format.KERAS, Format.SKLEARN, Format.XGBOOST, Format.LIGHTGBM, Format.TREELITE, Format.AOT_INDUCTOR,
    Format.TENSORRT, Format.TORCH, Format.PYTHON,
)  # fmt: skip
"""From the simplest: those that run anywhere without the framework first, those compiled for one machine last."""
_MEMORY_NOISE = 0.05
"""Share by which the resident memory of equal processes varies."""
_LESS, _NO_LESS = 0.95, 0.98
"""On a busy machine, a candidate wins if its CPU time is less than this share of the source's; the source stays if no
candidate's is less than the other share."""
_EQUAL = 0.97
"""Runtimes of a candidate are equal from this share of the best one's figure."""


@dataclass(frozen=True, slots=True)
class _Contender:
    outcome: Outcome
    order: int
    """Of the plan: simple conversions first."""
    figures: Profile | ServedMeasurement
    score: Interval
    """Of the objective; greater is better."""
    excess: float
    """Greatest share by which a budget is exceeded; 0 within all budgets."""

    @property
    def name(self) -> str:
        return self.outcome.candidate.name

    @property
    def rank(self) -> tuple[bool, int, int, int]:
        """Return what decides between equals; less is better."""
        candidate = self.outcome.candidate
        is_converted = candidate.name != SOURCE
        return is_converted, _PRECISIONS.index(candidate.precision), _FORMATS.index(candidate.format), self.order


def finalists(
    outcomes: Sequence[Outcome], objective: Objective, count: int = 3, also: str = ""
) -> list[tuple[str, Runtime, int]]:
    """Return the `count` best candidates by their profiles, and the baseline and `also` if they are not among them.

    Each one has its best runtime and the batch size of its best throughput; the best candidate comes first.
    Raises ValueError for an objective without the budget that its strategy needs.
    """
    check(objective)
    contenders = sorted(_profiled(outcomes, objective), key=lambda each: (each.excess, -each.score.value, *each.rank))
    baseline = baseline_of(outcomes)
    # The best of each format and precision first: the optimization levels of one graph hardly differ.
    kinds: set[tuple[Format, Precision]] = set()
    firsts: list[_Contender] = []
    rest: list[_Contender] = []
    for each in contenders:
        kind = each.outcome.candidate.format, each.outcome.candidate.precision
        (rest if kind in kinds else firsts).append(each)
        kinds.add(kind)
    contenders = firsts + rest
    chosen = contenders[:count] + [
        each for each in contenders[count:] if each.outcome is baseline or each.name == also
    ]
    return [(each.name, each.figures.runtime, _batch(each.figures)) for each in chosen]


def choose(outcomes: Sequence[Outcome], objective: Objective) -> tuple[str, str]:
    """Return the name of the winner, "" if there is none, and why, in a sentence with the figures.

    Served figures decide where at least one candidate has them, otherwise profiles. Raises ValueError for an
    objective without the budget that its strategy needs.
    """
    check(objective)
    if not any(each.can_win for each in outcomes):
        return "", "no candidate answers as the source does"
    contenders = _served(outcomes, objective) or _profiled(outcomes, objective)
    if not contenders:
        return "", f"no candidate could be measured: {_errors(outcomes)}"
    within = [each for each in contenders if not each.excess]
    if not within:
        return "", _missed(min(contenders, key=lambda each: (each.excess, each.rank)), objective)
    baseline = baseline_of(outcomes)
    base = next((each for each in within if each.outcome is baseline), None)
    source = base if base is not None and base.name == SOURCE else None
    if base is not None and (busy := _other_cores(within)) > MOST_OTHER_CORES:
        return _on_busy_machine(within, base, busy, objective)
    better = [each for each in within if source is None or each.score.low > source.score.high]
    if source is not None and not better:
        return SOURCE, _unbeaten(source, within, objective)
    winner = _simplest_of_best(better)
    return winner.name, _won(winner, base, better, objective)


def accept(outcomes: Sequence[Outcome], name: str) -> tuple[str, str]:
    """Return the candidate that the user takes by hand, and why. Raises ValueError unless it has passed."""
    outcome = next((each for each in outcomes if each.candidate.name == name), None)
    if outcome is None or not outcome.can_win:
        passed = ", ".join(each.candidate.name for each in outcomes if each.can_win) or "none"
        what = f"it is {outcome.status.value}" if outcome else "there is no such candidate"
        raise ValueError(f"'{name}' cannot be accepted: {what}; these have passed: {passed}")
    figures = outcome.served or next((each for each in outcome.profiles if _has_figures(each)), None)
    return name, f"{name}, accepted by hand" + (f": {_figures(figures)}" if figures and _has_figures(figures) else "")


def _other_cores(contenders: Sequence[_Contender]) -> float:
    """Return the cores that other programs have used while the contenders were served."""
    return max((other_cores(_rounds(each)) for each in contenders), default=0.0)


def _rounds(contender: _Contender) -> Sequence[Round]:
    return contender.figures.rounds if isinstance(contender.figures, ServedMeasurement) else ()


def _on_busy_machine(
    within: Sequence[_Contender], base: _Contender, busy: float, objective: Objective
) -> tuple[str, str]:
    """Decide by CPU time per inference, in the same rounds; say so where that proves nothing.

    Memory does not depend on other programs. A model that computes on a GPU, or that sleeps, is not known by it.
    """
    if objective.strategy is Strategy.MIN_MEMORY:
        better = [each for each in within if each is not base and each.score.low > base.score.high]
        winner = _simplest_of_best(better) if better else base
        return winner.name, _won(winner, base, better or [base], objective)
    own = [each.cpu_us for each in _rounds(base)]
    costs = {each.name: ratios([one.cpu_us for one in _rounds(each)], own) for each in within if _rounds(each)}
    known = {name: ratio for name, ratio in costs.items() if 0 < ratio.value < math.inf}
    others = {each.name: each for each in within if each is not base and each.name in known}
    # Threads that spin cost CPU time and save time: both figures must say the same.
    speeds = {name: _speed(each, base, objective) for name, each in others.items()}
    proven = [name for name in others if known[name].high < _LESS and speeds[name] > 1]
    note = f"other programs used {busy:.1f} cores, so CPU time per inference decides"
    if proven:
        best = min(proven, key=lambda name: known[name].value)
        equal = [others[name] for name in proven if known[name].low <= known[best].high]
        winner = min(equal, key=lambda each: each.rank)
        ratio = known[winner.name]
        why = f"{ratio.value:.2f} x the CPU time of {_called(base)} [{ratio.low:.2f} to {ratio.high:.2f}]"
        return winner.name, f"{winner.name} ({winner.figures.runtime.name}): {why}; {note}"
    if base.name == SOURCE and others and all(known[name].low > _NO_LESS and speeds[name] < 1 for name in others):
        return SOURCE, f"the source: no candidate needs less CPU time; {note}"
    return "", f"no winner proven: other programs used {busy:.1f} cores{_advice(base, known)}"


def _advice(base: _Contender, known: Mapping[str, Interval]) -> str:
    """Say which candidate needs least CPU time, and name one to accept: none that needs more than the source."""
    others = {name: ratio.value for name, ratio in known.items() if name != base.name}
    best = min(others, key=lambda name: others[name], default="")
    again = "repeat on an idle machine, or take one by hand with --accept"
    if not best:
        return f"; {again} {base.name}"
    ratio = others[best]
    figures = f"the best candidate is {best}, {ratio:.2f} x the CPU time of {_called(base)}"
    return f", {figures}; {again} {best if ratio < 1 else base.name}"


def _speed(contender: _Contender, base: _Contender, objective: Objective) -> float:
    """Return the median ratio of what the objective asks for, over the same rounds; greater is better."""
    gains = []
    for one, two in zip(_rounds(contender), _rounds(base), strict=False):
        latency, throughput = two.latency_us / max(one.latency_us, 1e-9), one.throughput / max(two.throughput, 1e-9)
        match objective.strategy:
            case Strategy.MIN_LATENCY:
                gains.append(latency)
            case Strategy.MAX_THROUGHPUT | Strategy.MAX_THROUGHPUT_WITHIN_LATENCY:
                gains.append(throughput)
            case _:
                gains.append(math.sqrt(latency * throughput))
    return statistics.median(gains) if gains else 1.0


def _called(base: _Contender) -> str:
    return "the source" if base.name == SOURCE else base.name


def best_profile(profiles: Sequence[Profile], objective: Objective) -> Profile | None:
    """Return the profile of the best runtime; the first one of those that are equal. None without figures."""
    scored = [(score(each, objective), each) for each in profiles if _has_figures(each)]
    if not scored:
        return None
    best = max(interval.value for interval, _ in scored)
    return next(profile for interval, profile in scored if interval.value >= best * _EQUAL)


def score(figures: Profile | ServedMeasurement, objective: Objective) -> Interval:
    """Return what the objective asks for, greater is better, with its 95 % confidence interval."""
    latency, throughput = figures.latency, figures.throughput
    match objective.strategy:
        case Strategy.MIN_LATENCY:
            return Interval(1 / latency.value, 1 / latency.high, _quotient(1, latency.low))
        case Strategy.MAX_THROUGHPUT | Strategy.MAX_THROUGHPUT_WITHIN_LATENCY:
            return throughput
        case Strategy.MIN_MEMORY:
            memory = max(figures.memory_mib, 1.0)
            return Interval(1 / memory, 1 / (memory * (1 + _MEMORY_NOISE)), 1 / (memory * (1 - _MEMORY_NOISE)))
        case Strategy.MAX_THROUGHPUT_AND_MIN_LATENCY:
            # The geometric mean of both gains over a source orders candidates as this does.
            return Interval(
                math.sqrt(throughput.value / latency.value),
                math.sqrt(throughput.low / latency.high),
                math.sqrt(_quotient(throughput.high, latency.low)),
            )


def check(objective: Objective) -> None:
    """Raise ValueError if the budget that the strategy needs is missing, or one is not positive."""
    budgets = {"latency_budget_us": objective.latency_budget_us, "memory_budget_mib": objective.memory_budget_mib}
    for name, value in budgets.items():
        if value is not None and not value > 0:
            raise ValueError(f"{name} is {value}, expected a number above 0")
    if objective.strategy is Strategy.MAX_THROUGHPUT_WITHIN_LATENCY and objective.latency_budget_us is None:
        raise ValueError(f"strategy '{objective.strategy.value}' needs latency_budget_us")


def _served(outcomes: Sequence[Outcome], objective: Objective) -> list[_Contender]:
    return [
        _contender(outcome, order, outcome.served, objective)
        for order, outcome in enumerate(outcomes)
        if outcome.can_win and outcome.served is not None and _has_figures(outcome.served)
    ]


def _profiled(outcomes: Sequence[Outcome], objective: Objective) -> list[_Contender]:
    return [
        _contender(outcome, order, best, objective)
        for order, outcome in enumerate(outcomes)
        if outcome.can_win and (best := _within_budget(outcome.profiles, objective)) is not None
    ]


def _within_budget(profiles: Sequence[Profile], objective: Objective) -> Profile | None:
    """Return the best profile of those within the budgets, or of all if none is."""
    within = [each for each in profiles if _has_figures(each) and not _excess(each, objective)]
    return best_profile(within or profiles, objective)


def _contender(
    outcome: Outcome, order: int, figures: Profile | ServedMeasurement, objective: Objective
) -> _Contender:
    return _Contender(outcome, order, figures, score(figures, objective), _excess(figures, objective))


def _has_figures(figures: Profile | ServedMeasurement) -> bool:
    return not figures.error and figures.latency.value > 0 and figures.throughput.value > 0


def _excess(figures: Profile | ServedMeasurement, objective: Objective) -> float:
    return max(
        0.0,
        _share_over(_judged_latency_us(figures), objective.latency_budget_us),
        _share_over(figures.memory_mib, objective.memory_budget_mib),
    )


def _share_over(value: float, budget: float | None) -> float:
    return value / budget - 1 if budget is not None else 0.0


def _judged_latency_us(figures: Profile | ServedMeasurement) -> float:
    """Return the p99 latency under load; of a profile, which has no load, the median of calls."""
    return figures.latency_p99_us if isinstance(figures, ServedMeasurement) else figures.latency.value


def _batch(figures: Profile | ServedMeasurement) -> int:
    return figures.batch if isinstance(figures, Profile) else figures.max_batch_size


def _simplest_of_best(contenders: Sequence[_Contender]) -> _Contender:
    best = max(contenders, key=lambda each: each.score.value)
    return min((each for each in contenders if each.score.high >= best.score.low), key=lambda each: each.rank)


def _quotient(above: float, below: float) -> float:
    return above / below if below > 0 else math.inf


# --- reasons --------------------------------------------------------------------------------------------------------


def _won(winner: _Contender, baseline: _Contender | None, better: Sequence[_Contender], objective: Objective) -> str:
    text = f"{winner.name} ({winner.figures.runtime.name}): {_figures(winner.figures)}"
    if baseline is not None and baseline is not winner:
        own, base = winner.figures, baseline.figures
        factors = (
            f"{own.throughput.value / base.throughput.value:.2f} x the throughput, "
            f"{own.latency.value / base.latency.value:.2f} x the latency, "
            f"{own.memory_mib / max(base.memory_mib, 1.0):.2f} x the memory"
        )
        name = "the source" if baseline.name == SOURCE else baseline.name
        text += f"; {factors} of {name} ({_figures(base)})"
    best = max(better, key=lambda each: each.score.value)
    if best is not winner:
        text += f"; {best.name} is not better for {objective.strategy.value} beyond the 95 % confidence intervals"
    return text


def _unbeaten(source: _Contender, within: Sequence[_Contender], objective: Objective) -> str:
    text = f"the source: {_figures(source.figures)}; "
    others = [each for each in within if each is not source]
    if not others:
        return text + "no other candidate was measured within the budgets"
    best = max(others, key=lambda each: each.score.value)
    return (
        text + f"no candidate is better for {objective.strategy.value} beyond the 95 % confidence intervals, "
        f"the best one is {best.name}: {_figures(best.figures)}"
    )


def _missed(closest: _Contender, objective: Objective) -> str:
    figures, parts = closest.figures, []
    what = "p99 latency" if isinstance(figures, ServedMeasurement) else "median latency"
    if (over := _share_over(_judged_latency_us(figures), objective.latency_budget_us)) > 0:
        parts.append(
            f"{what} {_judged_latency_us(figures):.0f} us, {over:.1%} over {objective.latency_budget_us:g} us"
        )
    if (over := _share_over(figures.memory_mib, objective.memory_budget_mib)) > 0:
        parts.append(f"memory {figures.memory_mib:.0f} MiB, {over:.1%} over {objective.memory_budget_mib:g} MiB")
    return f"no candidate is within the budget; the closest is {closest.name}: {'; '.join(parts)}"


def _figures(figures: Profile | ServedMeasurement) -> str:
    throughput, latency = figures.throughput, figures.latency
    return (
        f"{throughput.value:,.0f} inferences/s [{throughput.low:,.0f} to {throughput.high:,.0f}], "
        f"median latency {latency.value:,.0f} us [{latency.low:,.0f} to {latency.high:,.0f}]"
    )


def _errors(outcomes: Sequence[Outcome]) -> str:
    found = [
        f"{outcome.candidate.name}: {each.error}"
        for outcome in outcomes
        if outcome.can_win
        for each in outcome.profiles
        if each.error
    ]
    return "; ".join(found) or "there are no profiles"
