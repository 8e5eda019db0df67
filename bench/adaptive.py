"""The adaptive batcher beside fixed delays, under Poisson load that does not wait for answers."""

import json
import urllib.request

import numpy as np
import onnxruntime

from bench import models, open_loop, payloads
from bench.models import ADAPTIVE, DEEP_DELAYS_US, DEEP_INSTANCES, DEEP_WIDTH
from bench.payloads import HTTP_BINARY, Payload, Workload
from bench.peers import Naiad, Running
from bench.session import Session

LOADS = {"light": 0.15, "medium": 0.35, "heavy": 0.55}
"""Shares of what the model answers when there is always something to do. A machine that others share has moments at
half its speed, so that more than half of the load is none that it always carries."""
SHARE = 0.95
"""Of the load that the adaptive batcher is to carry at the p99 of the best fixed delay."""
_TURNS = 4
"""Short turns for each round: a pause of the machine spoils the p99 of the turn it falls into, and no other."""
_TURN_SHARE = 0.5
_WARM_UP_S = 0.2
"""After a change of the rate an adaptive batcher needs so long, and all fill the queue as they do later."""


def run(session: Session) -> None:
    """Each load with every fixed delay and adaptive, which is also measured at the share of the load."""
    repository = session.repository("deep")
    with session.serve(Naiad(), repository) as server:
        for instances in DEEP_INSTANCES:
            ways = [*map(str, DEEP_DELAYS_US), ADAPTIVE]
            each = {way: _checked(session, server, f"deep_{instances}_{way}") for way in ways}
            capacity = open_loop.capacity(server, each["0"], session.options.seconds)
            for load, share in LOADS.items():
                row: dict[str, str | float] = {"instances": instances, "load": load, "rate": round(share * capacity)}
                turns = [(payload, {**row, "delay_us": way, "share": 1.0}) for way, payload in each.items()]
                turns.append((each[ADAPTIVE], {**row, "delay_us": ADAPTIVE, "share": SHARE}))
                for number in range(_TURNS * session.options.rounds):
                    # Each comes first as often as last: the speed of the machine drifts.
                    first = number % len(turns)
                    for payload, way_row in turns[first:] + turns[:first]:
                        _measure(session, server, payload, way_row, number)


def _measure(session: Session, server: Running, payload: Payload, row: dict[str, str | float], number: int) -> None:
    seconds, rate_per_s = _TURN_SHARE * session.options.seconds, float(row["rate"]) * float(row["share"])
    open_loop.measure(server, payload, open_loop.poisson(rate_per_s, _WARM_UP_S, seed=-1 - number))
    before = _counts(server, payload.workload.model)
    found = open_loop.measure(server, payload, open_loop.poisson(rate_per_s, seconds, seed=number))
    rows, batches = (b - a for a, b in zip(before, _counts(server, payload.workload.model), strict=True))
    session.add("adaptive", row, {**found.as_dict(), "mean_rows": rows / batches})


def _counts(server: Running, model: str) -> tuple[int, int]:
    """Return the rows and the batches that a model has executed."""
    url = f"http://127.0.0.1:{server.http_port}/v2/models/{model}/stats"
    with urllib.request.urlopen(url, timeout=10) as answer:
        stats = json.load(answer)["model_stats"][0]
    return stats["inference_count"], stats["execution_count"]


def _checked(session: Session, server: Running, model: str) -> Payload:
    x = np.linspace(-1, 1, DEEP_WIDTH, dtype=np.float32).reshape(1, DEEP_WIDTH)
    reference = onnxruntime.InferenceSession(models.deep().SerializeToString(), providers=["CPUExecutionProvider"])
    (y,) = reference.run(["y"], {"x": x})
    workload = Workload(model, {"x": x}, {"y": y}, tolerance=1e-3 * float(abs(y).max()))
    payload = payloads.make(workload, HTTP_BINARY, session.work / "payloads")
    return payloads.check(payload, server.http_port, server.grpc_port)
