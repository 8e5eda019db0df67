"""`naiad explain`: show how requests of a model are scheduled, and why its last batches were sent."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from naiad.cli.parser import Parser, fail
from naiad.cli.sources import (
    NoModelError,
    NoResponseError,
    add_source_arguments,
    ask,
    find_models,
    reject_path,
    text_of,
)
from naiad.config.scheduling_rules import batching_hints, scheduler_kind, scheduling_rules

_DESCRIPTION = """\
Print how a request of MODEL is scheduled and, from a running server, the queue, the sizes of batches and why the
last ones were sent. Without a server, --model-repository explains a configuration in that directory.
The exit status is 1 if there is nothing to explain, 2 for an invalid command line.
"""
_BAR_WIDTH = 40

REASONS: Mapping[str, str] = {
    "full": "the largest batch, or a batch of the default scheduler",
    "preferred": "a preferred size was reached",
    "delay": "its oldest request had waited for the maximum delay",
    "shape": "the next request had another shape",
    "strategy": "the model's own batching rule closed it",
    "priority": "an older request of a lower priority level was skipped",
    "idle": "an instance was free and no other request waited",
    "ensemble": "requests of an ensemble run alone and at once; its members batch them",
}
DECISIONS: Mapping[str, str] = {
    "full": "full, of a preferred size or limited by another shape",
    "turn": "its turn on the device had come",
    "burst": "the rest of a burst had arrived",
    "goal": "the latency goal required it",
    "limit": "the maximum delay was over",
    "no_gain": "more waiting would not have paid, or too little was known",
}


def run(argv: Sequence[str]) -> int:
    """Explain the given model and return the exit status."""
    options = make_parser().parse_args(argv)
    try:
        if options.model_repository is None:
            reject_path("explain", options.model)
            found = ask(options.url, options.header, lambda client: client.explain(options.model, options.version))
        else:
            found = read(options.model_repository, options.model)
        text = text_of(options.url, format_explanation, found)
    except (NoResponseError, NoModelError) as error:
        return fail("naiad explain", error)
    print(json.dumps(found, indent=2) if options.json else text)
    return 0


def read(repository: Path, model: str) -> dict[str, Any]:
    """Return the explanation of a configuration in a repository. Raises NoModelError."""
    report = find_models(repository, model)[model]
    return {
        "name": model,
        "version": ", ".join(map(str, report.versions)),
        "scheduler": scheduler_kind(report.config),
        "rules": list(scheduling_rules(report.config)),
        "hints": list(batching_hints(report.config)),
    }


# --- text -----------------------------------------------------------------------------------------------------------


def format_explanation(found: Mapping[str, Any]) -> str:
    """Return an explanation as readable text."""
    version = f", version {found['version']}" if found["version"] else ""
    lines = [f"{found['name']}{version}: {found['scheduler']} scheduler", "", "A request"]
    lines += [f"  {number}. {rule}" for number, rule in enumerate(found["rules"], 1)]
    lines += [f"  ! {hint}" for hint in found["hints"]]
    if "batches" in found:
        lines += ["", *_format_now(found), *_format_sizes(found), *_format_reasons(found)]
    if "padding" in found:
        lines += ["", *_format_padding(found["padding"])]
    if "steps" in found:
        lines += ["", *_format_steps(found["steps"])]
    if "resources" in found:
        lines += ["", *_format_resources(found["resources"])]
    if "adaptive" in found:
        lines += ["", *_format_adaptive(found["adaptive"])]
    if found.get("recent_batches"):
        lines += ["", *_format_recent(found["recent_batches"])]
    return "\n".join(lines)


def _format_now(found: Mapping[str, Any]) -> list[str]:
    return [
        "Now",
        f"  {found['waiting']} waiting, {found['executing']} executing, {found['instances']} instances",
        f"  {found['batches']} batches so far; requests waited {found['queue_mean_us']:.0f} us on average",
    ]


def _format_sizes(found: Mapping[str, Any]) -> list[str]:
    sizes = {int(size): count for size, count in found["batch_sizes"].items()}
    if not sizes:
        return []
    most = max(sizes.values())
    rows = [f"  {size:>5} {'#' * max(1, round(_BAR_WIDTH * n / most))} {n}" for size, n in sorted(sizes.items())]
    return ["", "Rows of batches", *rows]


def _format_reasons(found: Mapping[str, Any]) -> list[str]:
    reasons = [(count, reason) for reason, count in found["release_reasons"].items() if count]
    if not reasons:
        return []
    rows = [f"  {count:>8}  {reason:<10}{REASONS.get(reason, '')}" for count, reason in sorted(reasons, reverse=True)]
    return ["", "Why they were sent", *rows]


def _format_padding(counts: Mapping[str, int]) -> list[str]:
    total = counts["data"] + counts["padding"]
    share = counts["padding"] / total if total else 0.0
    return [
        "Padding",
        f"  {share:.1%} of the elements of padded inputs were padding ({counts['padding']} of {total})",
    ]


def _format_steps(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    width = max(len("model"), *(len(step["model"]) for step in steps))
    rows = [
        f"  {step['model']:<{width}}  {step['requests']:>8}  {step['failed']:>6}  {step['mean_us']:>8.0f}"
        f"  {step['queue_mean_us']:>8.0f}  {step['compute_mean_us']:>10.0f}"
        for step in steps
    ]
    return ["Steps, on average", f"  {'model':<{width}}  requests  failed  takes us  queue us  compute us", *rows]


def _format_resources(resources: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = []
    for each in resources:
        where = "" if each["device"] is None else f" of device {each['device']}"
        rows.append(
            f"  {each['name']}{where}: {each['held']} of {each['limit']} in use, {each['waiting']} instances wait"
        )
    return ["Resources", *rows]


def _format_adaptive(learned: Mapping[str, Any]) -> list[str]:
    decisions = [(count, name) for name, count in learned["decisions"].items() if count]
    return [
        "Learned",
        f"  a batch takes {learned['fixed_us']:.0f} us plus {learned['row_us']:.1f} us per row; "
        f"99 of 100 at most {learned['tail_ratio']} times that",
        f"  {learned['arrivals_per_s']:.0f} requests/s arrive; throughput equals {learned['parallelism']} instances",
        f"  {learned['holds']} batches were delayed, by {learned['held_mean_us']:.0f} us on average",
        *(f"  {count:>8}  {name:<10}{DECISIONS.get(name, '')}" for count, name in sorted(decisions, reverse=True)),
    ]


def _format_recent(batches: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = ["The last batches", "    ms ago   rows  requests  waited us  executed us  why"]
    for batch in batches:
        why = DECISIONS.get(batch.get("decision", "")) or REASONS.get(batch["reason"], "")
        lines.append(
            f"  {batch['ended_us_ago'] / 1000:>8.1f}  {batch['rows']:>5}  {batch['requests']:>8}  "
            f"{batch['waited_us']:>9.0f}  {batch['executed_us']:>11.0f}  "
            f"{batch.get('decision') or batch['reason']}: {why}"
        )
    return lines


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the verb's arguments."""
    parser = Parser(
        prog="naiad explain",
        description=_DESCRIPTION,
        epilog="example: naiad explain resnet --url http://localhost:8000",
    )
    parser.add_argument("model", metavar="MODEL", help="the model's name")
    parser.add_argument("--version", default="", help="of the model; default the newest ready version")
    add_source_arguments(parser, "explain")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser
