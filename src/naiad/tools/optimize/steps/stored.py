"""Profiles and served figures as the journal keeps them."""

from collections.abc import Mapping
from typing import Any

from naiad.tools.measure.result import Interval
from naiad.tools.optimize.candidate_measurement import Profile, Round, Runtime, ServedMeasurement


def read_profile(values: Mapping[str, Any]) -> Profile:
    """Return a profile from its JSON. Raises KeyError, TypeError."""
    return Profile(**_measured(values))


def read_served(values: Mapping[str, Any]) -> ServedMeasurement:
    """Return served figures from their JSON. Raises KeyError, TypeError."""
    own = {"cpu": Interval(**values["cpu"]), "rounds": [Round(**each) for each in values["rounds"]]}
    return ServedMeasurement(**{**_measured(values), **own})


def _measured(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **values,
        "runtime": Runtime(**values["runtime"]),
        "latency": Interval(**values["latency"]),
        "throughput": Interval(**values["throughput"]),
    }
