"""The result in the terminal: a block for each load in perf_analyzer's words, a table of all loads, a comparison."""

from collections.abc import Sequence

from naiad.tools.measure.comparison import Change, Comparison, FigureComparison
from naiad.tools.measure.result import Interval, Latency, Result, Row, ServerFigures
from naiad.tools.perf.perf_plan import (
    Concurrency,
    Load,
    Measuring,
    PeriodicConcurrency,
    Plan,
    RequestRate,
    Search,
    Stop,
)

_PART_PERCENTILES = (50, 99)


def settings_text(plan: Plan) -> str:
    """Return the settings of a run, before it begins."""
    measuring = plan.measuring
    judged = f"p{measuring.percentile} latency" if measuring.percentile else "average latency"
    lines = [
        "*** Measurement Settings ***",
        f"  Server: {plan.service.url}",
        f"  Models: {', '.join(model.name for model in plan.models) or 'all of the recorded traffic'}",
        *[f"  Batch size: {size}" for size in sorted({model.batch_size for model in plan.models})],
        f"  {_stop_text(measuring)}",
        f"  Stabilizing using {judged} and throughput",
    ]
    if measuring.latency_limit_us:
        lines.append(f"  Latency limit: {measuring.latency_limit_us / 1e3:g} msec")
    if measuring.slo_us:
        lines.append(f"  Goodput counts responses within {measuring.slo_us / 1e3:g} msec")
    if plan.replay_files:
        lines.append(f"  Load: the recorded requests at their times, speed {plan.replay_speed:g}")
    elif plan.is_fixed_schedule:
        lines.append("  Load: each entry of the input data at its timestamp")
    else:
        lines.append(f"  {_load_text(plan.loads)}")
    return "\n".join(lines)


def _stop_text(measuring: Measuring) -> str:
    match measuring.stop:
        case Stop.CONFIDENCE:
            return (
                f"Measuring until the 95 % intervals are at most {measuring.stability_percent:g} % wide, "
                f"at most {measuring.window_ms * measuring.max_trials / 1e3:g} s"
            )
        case Stop.REQUEST_COUNT:
            return f"Measuring {measuring.request_count} requests"
        case Stop.TIME_WINDOWS:
            return f'Using "time_windows" mode for stabilization, windows of {measuring.window_ms} msec'
    return f'Using "count_windows" mode for stabilization, windows of {measuring.window_requests} requests'


def _load_text(loads: Search | Load) -> str:
    if isinstance(loads, Search):
        unit = "requests/s" if loads.is_rate else "concurrent requests"
        end = f"{loads.end:g}" if loads.end else "the latency limit"
        how = "binary search" if loads.is_binary else f"steps of {loads.step:g}"
        return f"Load: {loads.start:g} to {end} {unit}, {how}" if loads.start != loads.end else f"Load: {end} {unit}"
    if isinstance(loads, Concurrency):
        return f"Load: {loads.value} concurrent requests"
    if isinstance(loads, PeriodicConcurrency):
        return (
            f"Load: {loads.start} to {loads.end} requests, {loads.step} more after {loads.responses} responses to "
            "each of the last ones"
        )
    if isinstance(loads, RequestRate):
        return f"Load: {loads.per_s:g} requests/s"
    return f"Load: {type(loads).__name__.lower()}"


def row_title(row: Row) -> str:
    """Return the heading of a row, in perf_analyzer's words."""
    model = f" ({row.model})" if row.model else ""
    match row.mode:
        case "concurrency":
            return f"Request concurrency: {row.value:g}{model}"
        case "periodic_concurrency":
            return f"Periodic concurrency: {row.value:g} requests{model}"
        case "request_rate":
            return f"Request Rate: {row.value:g} inference requests per seconds{model}"
    return f"{row.mode.capitalize()}: {row.value:g} requests/s on average{model}"


def row_text(row: Row, percentile: int | None, verbosity: int = 0) -> str:
    """Return the block of a load."""
    lines = [row_title(row), "  Client: ", f"    Request count: {row.request_count}"]
    if row.sequences_per_s:
        lines.append(f"    Sequence throughput: {row.sequences_per_s:.6g} seq/sec")
    lines.append(f"    Throughput: {row.inferences_per_s:.6g} infer/sec ({_spread(row.throughput)})")
    if row.goodput.value != row.throughput.value:
        lines.append(f"    Goodput: {row.goodput.value * row.batch_size:.6g} infer/sec within the SLO")
    if row.first_response is not None:
        lines.append(f"    Response Throughput: {row.response_throughput:.6g} infer/sec")
    lines += _latency_lines("latency", row.latency, percentile, is_full=True)
    if row.mode != "concurrency":
        lines.append(f"    Service time from the actual send: p50 {_us(row.service, 50)}, p99 {_us(row.service, 99)}")
    if row.first_response is not None:
        lines += _latency_lines("time to first response", row.first_response, percentile)
    if row.between_responses is not None:
        lines += _latency_lines("time between responses", row.between_responses, percentile)
    client = row.client
    lines.append(
        f"    Avg client time: send {client.send_us:.0f} usec + receive {client.receive_us:.0f} usec, "
        f"network and server outside the model {client.network_us:.0f} usec"
    )
    for error in row.errors:
        lines.append(f"    Errors: {error.count} x {error.kind}: {error.message}")
    if row.server is not None:
        lines += ["  Server: ", *_server_lines(row.server, "    ")]
    lines += _part_lines(row)
    lines += _generator_lines(row)
    lines.append(f"  {'Stable' if row.is_stable else 'NOT STABLE'}: {row.verdict}")
    if verbosity > 1:
        lines += [
            f"  Window at {begin_s:.2f} s: throughput {rate:.6g} requests/s, latency {latency_us:.0f} usec"
            for begin_s, rate, latency_us in row.windows
        ]
    return "\n".join(lines)


def _latency_lines(name: str, latency: Latency, percentile: int | None, *, is_full: bool = False) -> list[str]:
    asked = percentile or 50
    if not is_full:
        return [f"    {name.capitalize()}: avg {latency.mean.value:.0f} usec, p99 {_us(latency, 99)}"]
    lines = [
        f"    Avg {name}: {latency.mean.value:.0f} usec (standard deviation {latency.std_us:.0f} usec, "
        f"{_spread(latency.mean)})"
    ]
    for number in sorted({50, 90, 95, 99, asked}):
        interval = latency.percentiles[number]
        lines.append(f"    p{number} {name}: {interval.value:.0f} usec ({_spread(interval)})")
    lines.append(f"    Longest: {latency.max_us:.0f} usec")
    return lines


def _us(latency: Latency, percentile: int) -> str:
    return f"{latency.percentiles[percentile].value:.0f} usec"


def _spread(interval: Interval) -> str:
    return f"95 %: {interval.low:.6g} to {interval.high:.6g}"


def _server_lines(server: ServerFigures, indent: str) -> list[str]:
    lines = [
        f"{indent}Inference count: {server.inference_count}",
        f"{indent}Execution count: {server.execution_count}",
        f"{indent}Successful request count: {server.success_count}",
    ]
    if server.failure_count:
        lines.append(f"{indent}Failed request count: {server.failure_count}")
    if server.cache_hit_count or server.cache_miss_count:
        lines.append(f"{indent}Cache hit count: {server.cache_hit_count}, miss count: {server.cache_miss_count}")
    compute_us = server.compute_input_us + server.compute_infer_us + server.compute_output_us
    total_us = server.overhead_us + server.queue_us + compute_us + server.cache_hit_us + server.cache_miss_us
    lines.append(
        f"{indent}Avg request latency: {total_us:.0f} usec (overhead {server.overhead_us:.0f} usec + "
        f"queue {server.queue_us:.0f} usec + compute input {server.compute_input_us:.0f} usec + "
        f"compute infer {server.compute_infer_us:.0f} usec + compute output {server.compute_output_us:.0f} usec)"
    )
    if server.composing:
        lines.append(f"{indent}Composing models: ")
    for part in server.composing:
        lines += [f"{indent}{part.model}, version: {part.version}", *_server_lines(part, indent + "  ")]
    return lines


def _part_lines(row: Row) -> list[str]:
    parts = row.parts
    if parts is None or not parts.requests:
        return []
    lines = [f"  Parts of a request ({parts.requests} sampled): "]
    for name, mean_us in parts.mean_us.items():
        shown = ", ".join(f"p{number} {parts.percentiles_us[name][number]:.0f}" for number in _PART_PERCENTILES)
        lines.append(f"    {name.replace('_', ' ')}: avg {mean_us:.0f}, {shown} usec")
    return lines


def _generator_lines(row: Row) -> list[str]:
    figures = row.generator
    processes = "1 process" if figures.processes == 1 else f"{figures.processes} processes"
    line = (
        f"  Load generator: {processes}, {figures.cpu_share:.0%} of a core, "
        f"at most about {figures.ceiling_per_s:.0f} requests/s"
    )
    if row.mode != "concurrency":
        line += f"; late by p99 {figures.late_p99_us:.0f} usec, {figures.late_share:.2%} by more than 1 msec"
    return [f"{line}; limited by {_LIMITS.get(figures.limited_by, figures.limited_by)}"]


_LIMITS = {
    "server": "the server",
    "generator": "THE GENERATOR: the figures say little about the server",
    "network": "the network",
    "load": "the load: all of it was sent and answered",
}


def closing_text(result: Result) -> str:
    """Return the table of all loads."""
    if not result.rows:
        return "Nothing was measured."
    judged = f"p{result.percentile}" if result.percentile else "Average"
    lines = [f"Inferences/Second vs. Client {judged} Batch Latency"]
    names = {
        "concurrency": "Concurrency",
        "periodic_concurrency": "Periodic Concurrency",
        "request_rate": "Request Rate",
    }
    for row in result.rows:
        latency = row.latency.percentiles[result.percentile] if result.percentile else row.latency.mean
        note = "" if row.is_stable else ", not stable"
        failures = sum(error.count for error in row.errors)
        note += f", {failures} errors" if failures else ""
        lines.append(
            f"{names.get(row.mode, row.mode.capitalize())}: {row.value:g}, throughput: {row.inferences_per_s:.6g} "
            f"infer/sec, latency {latency.value:.0f} usec{note}"
        )
    if result.found is not None:
        lines.append(f"Highest load within the latency limit: {result.found:g}")
    return "\n".join(lines)


def unstable_text(rows: Sequence[Row]) -> str:
    """Return perf_analyzer's words for loads that were not stable; Model Analyzer looks for them."""
    values = ", ".join(f"{row.value:g}" for row in rows if not row.is_stable)
    return f"Failed to obtain stable measurement. Please use a larger time window. Loads: {values}"


# --- comparison ---------------------------------------------------------------------------------------------------

_NAMES = {"concurrency": "concurrency", "request_rate": "request rate"}


def comparison_text(comparison: Comparison) -> str:
    """Return a line for each figure of each load, and what it means."""
    lines = ["", "Comparison with the baseline (change, 95 % interval)"]
    lines += [_line(figure) for figure in comparison.figures]
    lines += [f"  not compared: {load}" for load in comparison.unmatched]
    lines += [f"  doubtful: {each}" for each in comparison.doubts]
    if not comparison.figures:
        lines.append("  no load is in both runs")
    elif not comparison.is_repeated:
        lines.append("  Single runs: the variation between runs is assumed; --repeat 3 on both sides measures it.")
    if comparison.is_worse_past_limit:
        lines.append(f"WORSE than the baseline by more than {comparison.limit_percent:g} %")
    return "\n".join(lines)


def _line(figure: FigureComparison) -> str:
    change = figure.change_percent
    mark = "" if figure.change is Change.SAME else f"  {figure.change.value}"
    return (
        f"  {_NAMES.get(figure.mode, figure.mode)} {figure.value:g} {figure.model} {figure.figure}: "
        f"{figure.baseline:.5g} -> {figure.current:.5g}, {change.value:+.1f} % "
        f"({change.low:+.1f} to {change.high:+.1f}){mark}"
    )
