"""Whether naiad perf says rightly that its own load generator limited a load."""

from typing import Any

_LATE_US = 1_000.0
_LATE_SHARE = 0.05
_BUSY_CORE = 0.9
_NEAR_CEILING = 0.9


def check_generator(row: dict[str, Any], text: str) -> None:
    """Check that the report names the generator only if the row says that it was late or busy.

    On a machine with other work it may be, and the report has to say so; with no other work it must not.
    """
    if "THE GENERATOR" not in text:
        return
    figures, percentiles = row["generator"], row["latency"]["percentiles"]
    is_late = any(
        figures[f"late_p{percent}_us"] > max(_LATE_US, _LATE_SHARE * percentiles[percent]["value"])
        for percent in ("50", "99")
    )
    is_near_ceiling = figures["ceiling_per_s"] * _NEAR_CEILING <= row["throughput"]["value"]
    assert is_late or is_near_ceiling or figures["cpu_share"] >= _BUSY_CORE
