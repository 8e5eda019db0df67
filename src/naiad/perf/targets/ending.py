"""Responses of a request, and its end."""

import time

from naiad.perf.exchange import Exchange

CONNECTION, TIMEOUT = "connection", "timeout"
"""Kinds of failure that no server reports."""


def fail(exchange: Exchange, kind: str, message: str) -> None:
    """End a request with a failure."""
    exchange.end_ns = time.monotonic_ns()
    exchange.failure = kind
    exchange.failure_message = message
    exchange.on_end(exchange)


def count_response(exchange: Exchange, now_ns: int) -> None:
    """Note a response of a model that may be decoupled."""
    exchange.responses += 1
    if exchange.responses == 1:
        exchange.first_ns = now_ns
    elif exchange.gaps_ns is None:
        exchange.gaps_ns = [now_ns - exchange.end_ns]
    else:
        exchange.gaps_ns.append(now_ns - exchange.end_ns)
    exchange.end_ns = now_ns
    if exchange.on_response is not None:
        exchange.on_response(exchange)


def finish(exchange: Exchange, now_ns: int) -> None:
    """End a request after its final response, which may be empty."""
    exchange.end_ns = exchange.end_ns or now_ns
    exchange.first_ns = exchange.first_ns or now_ns
    exchange.on_end(exchange)
