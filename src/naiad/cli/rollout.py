"""`naiad rollout`: show how requests are split between versions of a model, and change it."""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from naiad.cli.parser import BAD_OPTION, Parser, fail, time_in
from naiad.cli.sources import DEFAULT_URL, NoResponseError, ask, text_of
from naiad.cli.status_line import StatusLine
from naiad.client import Client

_DESCRIPTION = """\
Print the rollout of MODEL on a running server: the share of its versions, their requests, errors and latencies.
With one of the flags below, change it first. The change takes effect between two requests.
The exit status is 1 if the server refuses or does not respond, 2 for an invalid command line.
"""
_WATCH_S = 1.0
_TIMEOUT_S = 600.0
_GUARD = ("min_requests", "max_error_rate", "max_p99_ms", "max_p99_ratio", "max_different_share")


def run(argv: Sequence[str]) -> int:
    """Show or change the rollout of a model and return the exit status."""
    options = make_parser().parse_args(argv)
    try:
        change = read_change(options)
    except ValueError as error:
        return fail("naiad rollout", error, BAD_OPTION)
    try:
        if options.end:
            return _end(options)
        found = _ask(options, change)
        display = StatusLine(stream=sys.stdout)
        display.show_lines(_text(options, found))
        while options.watch and found["rollout"] is not None:
            time.sleep(_WATCH_S)
            found = _ask(options, {})
            display.show_lines(_text(options, found))
    except NoResponseError as error:
        return fail("naiad rollout", error)
    return 0


def _ask(options: argparse.Namespace, change: Mapping[str, Any]) -> dict[str, Any]:
    async def query(client: Client) -> dict[str, Any]:
        if change:
            return await client.change_rollout(options.model, change)
        return await client.rollout(options.model)

    return ask(options.url, options.header, query, timeout_s=options.timeout)


def _end(options: argparse.Namespace) -> int:
    found = ask(
        options.url, options.header, lambda client: client.end_rollout(options.model), timeout_s=options.timeout
    )
    text = text_of(options.url, format_end, found)
    print(json.dumps(found, indent=2) if options.json else text)
    return 0


def read_change(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields that the flags set; none to show the rollout. Raises ValueError for a contradiction."""
    fields: dict[str, Any] = {
        name: getattr(options, name)
        for name in ("stable", "canary", "weight", "sticky", "shadow")
        if getattr(options, name) is not None
    }
    if (options.steps is None) != (options.every is None):
        raise ValueError("--steps and --every belong together, as in --steps 5,25,50,100 --every 120")
    if options.steps is not None:
        fields["steps"] = {"weights": options.steps, "every_s": options.every}
    guard = {name: getattr(options, name) for name in _GUARD if getattr(options, name) is not None}
    if guard:
        fields["guard"] = guard
    actions = [
        name
        for name, is_given in (
            ("--promote", options.promote),
            ("--rollback", options.rollback),
            ("--to", options.to is not None),
            ("--end", options.end),
        )
        if is_given
    ]
    if options.end and options.allow is not None:
        raise ValueError("--end and --allow exclude each other; run one after the other")
    if len(actions) > 1 or (actions and fields):
        others = [*actions, *(f"--{name.replace('_', '-')}" for name in fields)]
        raise ValueError(f"{' and '.join(others)} exclude each other; run one after the other")
    allowed = {} if options.allow is None else {"allow": options.allow}
    if options.promote or options.rollback:
        return {"action": "promote" if options.promote else "rollback", **allowed}
    return allowed | ({"to": options.to} if options.to is not None else fields)


def weights(text: str) -> list[float]:
    """Return the weights of `--steps`. Raises ValueError."""
    return [float(part) for part in text.split(",")]


def versions(text: str) -> list[int]:
    """Return the versions of `--allow`. Raises ValueError."""
    return [int(part) for part in text.split(",")]


# --- text -----------------------------------------------------------------------------------------------------------


def _text(options: argparse.Namespace, found: dict[str, Any]) -> str:
    text = text_of(options.url, format_rollout, found)
    return json.dumps(found, indent=2) if options.json else text


def format_rollout(found: Mapping[str, Any]) -> str:
    """Return a rollout as readable text, with the next commands."""
    model, rollout = found["model"], found["rollout"]
    if rollout is None:
        return "\n".join([f"{model}: the rollout has ended ({found['note']})", *_refused(found), *_unstored(found)])
    lines = [f"{model}: {_summary(found)}", "", _HEADING]
    lines += [_row(role, found[role]) for role in ("stable", "canary") if role in found]
    if "shadow" in found:
        lines += ["", "shadow copies: " + ", ".join(f"{count} {name}" for name, count in found["shadow"].items())]
    lines += ["", *_limits(rollout), f"last change {found['age_s']:.0f} s ago: {found['note']}"]
    return "\n".join([*lines, *_refused(found), *_unstored(found), *_next_commands(found)])


def format_end(found: Mapping[str, Any]) -> str:
    """Return the answer to `--end` as readable text."""
    if found["rollout"] is not None:
        raise ValueError(f"the rollout of {found['model']} goes on")
    ended = f"the rollout of {found['model']} has ended: its newest version serves, unless it was refused"
    return "\n".join([ended, *_refused(found), *_unstored(found)])


def _unstored(found: Mapping[str, Any]) -> list[str]:
    if reason := found.get("unstored", ""):
        return [f"NOT STORED, a restart would return to the state before: {reason}"]
    if reason := found.get("unshared", ""):
        return [f"STORED BY THIS SERVER ALONE, other servers do not follow: {reason}"]
    return []


def _refused(found: Mapping[str, Any]) -> list[str]:
    return [
        f"version {version} is refused ({reason}); naiad rollout {found['model']} --allow {version}"
        for version, reason in found.get("refused", {}).items()
    ]


_HEADING = "          version    share  requests  errors  error rate   p50 ms   p99 ms"


def _row(role: str, side: Mapping[str, Any]) -> str:
    latencies = "".join(
        f"{'-' if side[name] is None else format(side[name], '.2f'):>9}" for name in ("p50_ms", "p99_ms")
    )
    share = f"{side['percent']:g} %"
    return (
        f"  {role:<8}{side['version']:>7}{share:>9}{side['requests']:>10}{side['errors']:>8}"
        f"{side['error_rate']:>12.2%}{latencies}"
    )


def _summary(found: Mapping[str, Any]) -> str:
    rollout = found["rollout"]
    if "canary" not in rollout:
        return f"version {rollout['stable']} serves all requests"
    parts = [f"{rollout['weight']:g} % of the requests go to version {rollout['canary']}"]
    if rollout["sticky"]:
        parts.append(f"by {rollout['sticky']}")
    if rollout["shadow"]:
        parts.append(f"{rollout['shadow']:g} % of the other ones are copied to it")
    if found["step"] is not None:
        left = ", ".join(f"{weight:g} %" for weight in found["weights_left"]) or "none"
        parts.append(f"step {found['step']}, next: {left}")
    return "; ".join(parts)


def _limits(rollout: Mapping[str, Any]) -> list[str]:
    guard = rollout.get("guard")
    if guard is None:
        return []
    return ["guard: " + ", ".join(f"{name} {value:g}" for name, value in guard.items())]


def _next_commands(found: Mapping[str, Any]) -> list[str]:
    command = f"naiad rollout {found['model']}"
    if "canary" in found:
        return [f"next: {command} --promote, {command} --rollback, or {command} --watch"]
    if found["previous"] is not None:
        return [f"next: {command} --rollback returns to version {found['previous']}"]
    return [f"next: {command} --canary VERSION --weight PERCENT, or {command} --to VERSION"]


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the verb's arguments."""
    parser = Parser(
        prog="naiad rollout",
        description=_DESCRIPTION,
        epilog="example: naiad rollout resnet --canary 2 --weight 10 --max-error-rate 0.01",
    )
    parser.add_argument("model", metavar="MODEL", help="the model's name")
    parser.add_argument("-u", "--url", default=DEFAULT_URL, help=f"the server; default {DEFAULT_URL}")
    parser.add_argument(
        "--header", action="append", default=[], metavar="'NAME: VALUE'", help="header to send, such as an API key"
    )
    parser.add_argument(
        "--timeout",
        type=time_in("s"),
        default=_TIMEOUT_S,
        metavar="TIME",
        help=f"for the answer, which comes when versions are loaded; default {_TIMEOUT_S:g}",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--watch", action="store_true", help="print again every second")
    split = parser.add_argument_group("split requests")
    split.add_argument(
        "--stable", type=int, metavar="VERSION", help="serves the requests that the canary does not get"
    )
    split.add_argument("--canary", type=int, metavar="VERSION", help="the new version")
    split.add_argument("--weight", type=float, metavar="PERCENT", help="share of the canary")
    split.add_argument("--sticky", metavar="PARAMETER", help="request parameter, or request_id, that decides")
    split.add_argument("--shadow", type=float, metavar="PERCENT", help="share of the requests copied to the canary")
    split.add_argument(
        "--steps", type=weights, metavar="PERCENT,...", help="weights one after the other; needs --every"
    )
    split.add_argument("--every", type=time_in("s"), metavar="TIME", help="duration of a step, such as 10m")
    actions = parser.add_argument_group("act")
    actions.add_argument("--promote", action="store_true", help="make the canary stable")
    actions.add_argument("--rollback", action="store_true", help="return to the version before")
    actions.add_argument("--to", type=int, metavar="VERSION", help="switch all requests at once")
    actions.add_argument(
        "--allow",
        type=versions,
        metavar="VERSION,...",
        help="let versions that were rolled back get requests again; also with other flags",
    )
    actions.add_argument(
        "--end", action="store_true", help="end the rollout: the newest version serves, unless it was refused"
    )
    guard = parser.add_argument_group("roll back by itself")
    guard.add_argument("--min-requests", type=int, metavar="N", help="requests that a verdict needs; default 100")
    guard.add_argument("--max-error-rate", type=float, metavar="SHARE", help="limit of errors / requests")
    guard.add_argument("--max-p99-ms", type=time_in("ms"), metavar="MS", help="limit of the canary's p99")
    guard.add_argument(
        "--max-p99-ratio", type=float, metavar="RATIO", help="limit of the canary's p99 / that of stable"
    )
    guard.add_argument("--max-different-share", type=float, metavar="SHARE", help="limit of different shadow copies")
    return parser
