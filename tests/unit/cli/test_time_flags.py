"""Times on the command lines of all verbs: one syntax, and the numbers that each flag has always taken."""

import argparse
import importlib
from collections.abc import Mapping
from typing import Any

import pytest

from naiad.cli.verbs import VERBS
from naiad.options.duration import read_time


def parser_of(verb: str) -> argparse.ArgumentParser:
    module = {"perf": "naiad.cli.perf.perf_flags"}.get(verb, VERBS[verb][0])
    parser: argparse.ArgumentParser = importlib.import_module(module).make_parser()
    return parser


FLAGS: Mapping[str, Mapping[str, str]] = {
    "check": {"--load-timeout-secs": "s"},
    "optimize": dict.fromkeys(("--seconds", "--tuning-seconds", "--converter-seconds", "--runner-seconds"), "s"),
    "perf": {
        "--latency-threshold": "ms",
        "--measurement-interval": "ms",
        "--duration": "s",
        "--slo": "ms",
        "--request-timeout": "s",
        "--metrics-interval": "ms",
    },
    "consume": {"--claim-after": "s", "--timeout": "s"},
    "predict": {"--timeout": "s"},
    "rollout": {"--timeout": "s", "--every": "s", "--max-p99-ms": "ms"},
}
"""Verb -> flag -> the unit of its value and of a number without a unit."""
_TEXTS = {"--latency-budget": ("analyze", "optimize"), "--time-limit": ("analyze",), "--seconds": ("analyze",)}
"""Flags whose text is read with the settings; their own tests have the values."""
TABLE = [(verb, flag, unit) for verb, flags in FLAGS.items() for flag, unit in flags.items()]


def value(verb: str, flag: str, text: str) -> Any:
    """Return what the parser makes of a text."""
    (action,) = (each for each in parser_of(verb)._actions if flag in each.option_strings)
    read = action.type
    assert callable(read)
    return read(text)


@pytest.mark.parametrize(("verb", "flag", "unit"), TABLE)
def test_every_time_flag_takes_units_and_numbers(verb: str, flag: str, unit: str) -> None:
    seconds = 1.0 if unit == "s" else 1e3
    assert value(verb, flag, "2s") == pytest.approx(2 * seconds)
    assert value(verb, flag, "500ms") == pytest.approx(0.5 * seconds)
    assert value(verb, flag, "2m") == pytest.approx(120 * seconds)
    assert value(verb, flag, "1500") == 1500


@pytest.mark.parametrize(("verb", "flag", "unit"), TABLE)
def test_what_is_no_time_is_refused(verb: str, flag: str, unit: str) -> None:
    for text in ("soon", "5 parsecs", "s", ""):
        with pytest.raises(argparse.ArgumentTypeError, match=f"'{text}' is not a"):
            value(verb, flag, text)


def test_milliseconds_of_perf_analyzer_stay_whole() -> None:
    assert isinstance(value("perf", "--measurement-interval", "5000"), int)
    assert value("perf", "--measurement-interval", "5s") == 5000
    with pytest.raises(argparse.ArgumentTypeError, match="not a whole number of ms"):
        value("perf", "--measurement-interval", "200us")


def test_table_has_every_flag_with_a_time() -> None:
    missing = []
    for verb in FLAGS | {"analyze": {}, "compare": {}}:
        for action in parser_of(verb)._actions:
            names = " ".join(action.option_strings)
            is_time = str(action.metavar) in ("S", "MS", "SECONDS", "TIME") or "seconds" in names
            known = any(each in FLAGS.get(verb, {}) or verb in _TEXTS.get(each, ()) for each in action.option_strings)
            if is_time and not known:
                missing.append((verb, action.option_strings))
    assert missing == []


@pytest.mark.parametrize(
    ("text", "unit", "expected"),
    [
        ("20ms", "s", 0.02),
        ("20ms", "ms", 20),
        ("0.5s", "ms", 500),
        (".5 s", "us", 5e5),
        ("1h", "s", 3600),
        ("3", "us", 3),
        ("1e3", "s", 1000),
        ("-1", "s", -1),
        (" 7 ", "ms", 7),
    ],
)
def test_time_is_read_in_the_unit_wanted(text: str, unit: str, expected: float) -> None:
    assert read_time(text, unit) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["20", "0"])
def test_unit_may_be_required(text: str) -> None:
    with pytest.raises(ValueError, match="write a time with its unit"):
        read_time(text, "us", needs_unit=True)
    assert read_time("20ms", "us", needs_unit=True) == pytest.approx(20_000)
