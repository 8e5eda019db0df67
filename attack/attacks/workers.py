"""Requests that kill the workers of Python models, and response streams that their client does not read."""

import contextlib
import json

from attack.connection import Http1Peer
from attack.registry import HTTP1, Limits, attack
from attack.target import Target

_ANSWERED = (200, 401)
"""401: the server asks for a key, which an attacker does not have."""
_PATIENCE_S = 20.0


@attack(HTTP1, limits=Limits(cpu_s=6.0, peak_mib=96.0, kept_mib=20.0))
def unread_streams(target: Target) -> None:
    """Endless answers of a decoupled model with one instance that are not read, while another client asks it."""
    endless = json.dumps({"COUNT": 1_000_000}).encode()
    with contextlib.ExitStack() as opened:
        for _ in target.rounds(10):
            peer = opened.enter_context(target.http1())
            head = peer.head("/v2/models/pages/generate_stream", {"content-length": str(len(endless))})
            peer.send(head + endless, reads=False)
        with target.http1() as other:
            status = other.request(
                "/v2/models/pages/generate_stream", json.dumps({"COUNT": 1}).encode(), most_s=_PATIENCE_S
            )
    if status not in _ANSWERED:
        raise RuntimeError(f"another client of the model got status {status} within {_PATIENCE_S:g} s")


@attack(HTTP1, limits=Limits(cpu_s=8.0, peak_mib=128.0, kept_mib=48.0))
def deadly_requests(target: Target) -> None:
    """A request that kills the worker of its model, sent again and again, while another client asks the model."""
    statuses = []
    for _ in target.rounds(50):
        with target.http1() as peer:
            statuses.append(_ask_mortal(peer, "deadly"))
            if _ask_mortal(peer, "harmless") not in _ANSWERED:
                raise RuntimeError("another client of the model was not answered")
    if statuses.count(503) > 2:
        raise RuntimeError(f"{statuses.count(503)} workers died of the same request")


def _ask_mortal(peer: Http1Peer, kind: str) -> int:
    tensor = {"name": "KIND", "datatype": "BYTES", "shape": [1], "data": [kind]}
    body = json.dumps({"inputs": [tensor]}).encode()
    return peer.request("/v2/models/mortal/infer", body, most_s=_PATIENCE_S)
