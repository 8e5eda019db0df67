"""Served models on the cores of a machine, under load: the simulation behind predictions."""

import functools
import math
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.batch import Batch
from naiad.core.errors import InferError
from naiad.core.request import InferRequest, RequestHeader
from naiad.scheduler.api import Dropped
from naiad.scheduler.factory import create_scheduler
from naiad.tools.analyze.simulation.station import Station
from naiad.tools.analyze.simulation.timeline import Timeline

EVEN = (1.0,)
"""Durations that do not vary."""
_WARM_UP_SHARE = 0.2
_STEPS = 2000
"""Executions of requests in a simulation; fewer requests for ensembles."""
_MOST_REQUESTS = 8000
_OVERLOAD = 3
"""A simulation also ends after this many times as many arrivals: the system cannot keep up."""


@dataclass(frozen=True, slots=True)
class BatchTime:
    """The time of a batch: `fixed_ns + row_ns * rows`, times `1 + slowdown` for each other batch of the model."""

    fixed_ns: float
    row_ns: float
    slowdown: float = 0.0
    """Beyond the sharing of cores: memory bandwidth, caches, locks."""
    spread: Sequence[float] = EVEN
    """Quantiles of duration / expected duration, equally likely; their mean is 1."""
    wake_up_ns: float = 0.0
    """From the arrival of a request to its execution by an idle instance."""
    gap_ns: float = 0.0
    """From the end of a batch until the instance takes the next one."""
    lone_share: float = 1.0
    """Of the time of a batch, for a single client, which keeps the server awake."""

    def work_ns(self, rows: float, others: float = 0.0) -> float:
        """Return the expected work of a batch that begins beside `others` of its model."""
        return (self.fixed_ns + self.row_ns * rows) * (1.0 + self.slowdown * others)


@dataclass(frozen=True, slots=True)
class RequestCost:
    """What a request costs outside its models."""

    pass_ns: float = 0.0
    """Of the event loop, once for the request, once between two steps and once for the response."""
    delay_ns: float = 0.0
    """Time during which no core is busy: event loops that were idle wake up, once for each of a request's passes."""
    spread: Sequence[float] = EVEN
    client_ns: float = 0.0
    """Of the load generator, which sends and receives one after the other."""
    client_turn_ns: float = 0.0
    """Of the load generator, for a turn of its event loop, which handles all that waits. In a closed loop a turn
    receives responses and sends the next requests; an open loop needs two.
    """
    batch_ns: float = 0.0
    """Of the event loop, once for each batch."""


@dataclass(frozen=True, slots=True)
class SimulatedModel:
    """A model that executes batches."""

    config: ModelConfig
    cost: BatchTime
    instance_count: int = 1
    threads: int = 1
    """Of an instance."""


@dataclass(frozen=True, slots=True)
class RouteStep:
    """A model that a request passes, after other steps of its route."""

    model: str
    needs: tuple[int, ...] = ()
    """Positions of the steps that must have ended."""


@dataclass(frozen=True, slots=True)
class SimulatedRoute:
    """What happens to the requests to a model: itself, or the steps of an ensemble in order."""

    model: str
    steps: Sequence[RouteStep]
    cost: RequestCost = RequestCost()
    rows: int = 1


@dataclass(frozen=True, slots=True)
class System:
    """A machine with its models. Each of several server processes has all of the instances."""

    models: Mapping[str, SimulatedModel]
    routes: Sequence[SimulatedRoute]
    """Of the models under load, which requests go to in turn."""
    cores: float
    processes: int = 1


@dataclass(frozen=True, slots=True)
class SimulatedLoad:
    """A closed loop of `concurrency`, or requests at a rate."""

    concurrency: int = 0
    rate_per_s: float = 0.0
    is_poisson: bool = False


@dataclass(slots=True)
class Executions:
    """What the executions of a model have been on the mean, weighted by their requests."""

    requests: int = 0
    batches: int = 0
    rows: float = 0.0
    """Of all batches, each counted once for each of its requests."""
    work_ns: float = 0.0
    duration_ns: float = 0.0
    queue_ns: float = 0.0
    others: float = 0.0
    busy_ns: float = 0.0
    """Core time of all batches."""

    @property
    def mean_rows(self) -> float:
        """Rows of the batch of a request."""
        return self.rows / max(1, self.requests)

    @property
    def mean_others(self) -> float:
        """Batches of the model that a batch began beside."""
        return self.others / max(1, self.requests)

    @property
    def stretch(self) -> float:
        """How much longer batches took because they shared cores."""
        return self.duration_ns / self.work_ns if self.work_ns else 1.0


@dataclass(slots=True)
class Simulated:
    """What happened after the warm-up."""

    span_ns: int = 0
    latencies_ns: np.ndarray = field(default_factory=lambda: np.zeros(0))
    dropped_count: int = 0
    executions: Mapping[str, Executions] = field(default_factory=dict)
    loop_ns: float = 0.0
    """Core time of the event loops."""
    asked_per_s: float = 0.0
    """The rate of an open loop."""

    @property
    def throughput(self) -> float:
        """Responses/s."""
        return len(self.latencies_ns) * 1e9 / self.span_ns if self.span_ns else 0.0

    @property
    def overhead_ns(self) -> float:
        """The mean time of a request outside queues and executions."""
        inside = sum(each.queue_ns + each.duration_ns for each in self.executions.values())
        return float(np.mean(self.latencies_ns)) - inside / max(1, len(self.latencies_ns))

    @property
    def cpu_cores(self) -> float:
        """Busy cores."""
        busy_ns = self.loop_ns + sum(each.busy_ns for each in self.executions.values())
        return busy_ns / self.span_ns if self.span_ns else 0.0

    def percentile_us(self, percentile: int) -> float:
        """Return a latency by nearest rank; infinite without a response."""
        if not len(self.latencies_ns):
            return math.inf
        return float(np.percentile(self.latencies_ns, percentile, method="inverted_cdf")) / 1e3


class _EventLoop:
    """Executes callbacks one after the other, in turns: what waits at the end of a turn makes up the next one.

    A loop that is idle wakes up first. What is called meanwhile joins its turn, so requests that were sent together
    stay together.
    """

    def __init__(self, timeline: Timeline, wake_up_ns: Callable[[], float], turn_ns: float = 0.0) -> None:
        """`turn_ns`: work of a turn besides its callbacks."""
        self.busy_ns = 0.0
        self.is_busy = False
        self._timeline = timeline
        self._wake_up_ns = wake_up_ns
        self._turn_ns = turn_ns
        self._turn: deque[tuple[float, Callable[[], None]]] = deque()
        self._waiting: deque[tuple[float, Callable[[], None]]] = deque()
        self._after_turn: list[Callable[[], None]] = []
        self._is_awake = False
        self._action: Callable[[], None]
        """The one that is called when the present work is done."""

    def call(self, work_ns: float, action: Callable[[], None]) -> None:
        """Call an action when the loop has come to it and done some work."""
        self._waiting.append((work_ns, action))
        if not self._is_awake:
            self._is_awake = True
            self._timeline.at(self._timeline.now_ns + int(self._wake_up_ns()), self._next)

    def after_turn(self, action: Callable[[], None]) -> None:
        """Call an action when the turn has ended, at once without one: a thread waits for the interpreter's lock."""
        if self.is_busy:
            self._after_turn.append(action)
        else:
            action()

    def _next(self) -> None:
        turn_ns = 0.0
        if not self._turn:
            self._end_turn()
            self._turn, self._waiting = self._waiting, self._turn
            turn_ns = self._turn_ns
        self.is_busy = self._is_awake = bool(self._turn)
        if self._turn:
            work_ns, self._action = self._turn.popleft()
            self.busy_ns += turn_ns + work_ns
            self._timeline.work(turn_ns + work_ns, self._end)

    def _end_turn(self) -> None:
        self.is_busy = False
        if self._after_turn:
            ended, self._after_turn = self._after_turn, []
            for action in ended:
                action()

    def _end(self) -> None:
        self._action()
        self._next()


class _Client:
    """One outstanding request, sent again when it is answered in a closed loop."""

    __slots__ = ("begun_ns", "is_dropped", "left", "process", "requests", "route")

    def __init__(self) -> None:
        self.begun_ns = 0
        self.is_dropped = False
        self.process = 0
        self.route: SimulatedRoute
        self.left: list[int] = []
        """Of each step, the steps that it still waits for."""
        self.requests: dict[int, InferRequest] = {}


class Simulation:
    """One run of a system under a load. The same seed gives the same result."""

    def __init__(self, system: System, load: SimulatedLoad, seed: int = 0, steps: int = _STEPS) -> None:
        self._system, self._load = system, load
        self._random = random.Random(seed)
        self._timeline = Timeline(system.cores, now_ns=1_000)
        self._stations: list[dict[str, Station]] = []
        self._executions = {name: Executions() for name in system.models}
        self._loops = [_EventLoop(self._timeline, self._wake_up_ns) for _ in range(system.processes)]
        turn_ns = max(route.cost.client_turn_ns for route in system.routes)
        self._generator = _EventLoop(self._timeline, self._wake_up_ns, turn_ns)
        for process in range(system.processes):
            self._stations.append({name: self._station(name, process) for name in system.models})
        self._executing: dict[Batch, tuple[float, int]] = {}
        """The work of each executing batch, and the batches that it began beside."""
        self._is_contended = False
        """Whether the event loop was busy when the latest batch ended."""
        self._latencies_ns: list[int] = []
        self._dropped_count = self._begun_count = self._ended_count = 0
        self._measured_from_ns = self._measured_loop_ns = 0.0
        longest = max(len(route.steps) for route in system.routes)
        count = max(steps // max(1, longest), 4 * load.concurrency)
        self._count = min(_MOST_REQUESTS, count)
        self._warm_up_count = max(int(_WARM_UP_SHARE * self._count), min(load.concurrency, self._count // 2))

    def _station(self, name: str, process: int) -> Station:
        served = self._system.models[name]
        return Station(
            self._timeline,
            create_scheduler(served.config, instance_count=served.instance_count),
            functools.partial(self._begin_batch, name, process),
            instance_count=served.instance_count,
            threads=served.threads,
            wake_up_ns=int(served.cost.wake_up_ns),
            when_awake=self._loops[process].after_turn,
            after=functools.partial(self._after_batch, served.cost.gap_ns),
            on_end=functools.partial(self._end_batch, name),
            on_drop=self._drop,
        )

    def run(self) -> Simulated:
        """Simulate until enough requests have been answered."""
        if self._load.concurrency:
            for number in range(self._load.concurrency):
                # All at once would stay together for long.
                self._timeline.at(1_000 + number * 20_000, functools.partial(self._begin, _Client()))
        else:
            self._arrive_at(1_000.0)
        self._timeline.run()
        return Simulated(
            span_ns=int(self._timeline.now_ns - self._measured_from_ns),
            latencies_ns=np.array(self._latencies_ns),
            dropped_count=self._dropped_count,
            executions=self._executions,
            loop_ns=sum(loop.busy_ns for loop in self._loops) - self._measured_loop_ns,
            asked_per_s=self._load.rate_per_s,
        )

    def _wake_up_ns(self) -> float:
        """Return the time that an idle event loop takes to wake up; a lone request waits once for each pass."""
        route = self._system.routes[0]
        cost = route.cost
        factor = self._random.choice(cost.spread) if cost.spread is not EVEN else 1.0
        return cost.delay_ns * factor / (len(route.steps) + 2)

    def _arrive_at(self, time_ns: float) -> None:
        gap_ns = 1e9 / self._load.rate_per_s
        next_ns = time_ns + (self._random.expovariate(1.0 / gap_ns) if self._load.is_poisson else gap_ns)

        def arrive() -> None:
            self._begin(_Client())
            self._arrive_at(next_ns)

        self._timeline.at(int(time_ns), arrive)

    def _begin(self, client: _Client) -> None:
        routes = self._system.routes
        route = client.route = routes[self._begun_count % len(routes)]
        client.process = self._begun_count % len(self._loops)
        client.begun_ns = self._timeline.now_ns
        client.left = [len(step.needs) for step in route.steps]
        self._begun_count += 1
        if self._begun_count == self._count:
            self._measure()
        elif self._begun_count == _OVERLOAD * self._count:
            self._timeline.is_stopped = True
        if self._load.concurrency:
            self._arrive(client)  # The turn that has received a response sends.
        else:
            self._generate(client, route.cost.client_ns / 2, self._arrive)

    def _generate(self, client: _Client, work_ns: float, action: Callable[[_Client], None]) -> None:
        """Call an action when the load generator has come to it."""
        self._generator.call(work_ns, functools.partial(action, client))

    def _pass(self, client: _Client, action: Callable[[], None]) -> None:
        """Call an action when the event loop of the server has come to it."""
        self._loops[client.process].call(client.route.cost.pass_ns, action)

    def _arrive(self, client: _Client) -> None:
        first = [index for index, step in enumerate(client.route.steps) if not step.needs]
        self._pass(client, functools.partial(self._enqueue, client, first))

    def _enqueue(self, client: _Client, steps: Sequence[int]) -> None:
        for index in steps:
            request = client.requests.get(index)
            if request is None:
                request = InferRequest(_HEADER, (), lambda request, response: None, context=(client, index))
                client.requests[index] = request
            request.batch_size = client.route.rows
            request.arrival_ns = self._timeline.now_ns
            try:
                self._stations[client.process][client.route.steps[index].model].enqueue(request)
            except InferError:
                self._reject(client)

    def _begin_batch(self, name: str, process: int, batch: Batch) -> float:
        cost = self._system.models[name].cost
        others = self._stations[process][name].running_count - 1
        work_ns = cost.work_ns(batch.size, others)
        if self._load.concurrency == 1:
            work_ns *= cost.lone_share
        if cost.spread is not EVEN:
            work_ns *= self._random.choice(cost.spread)
        self._executing[batch] = work_ns, others
        return work_ns

    def _end_batch(self, name: str, batch: Batch) -> None:
        work_ns, others = self._executing.pop(batch)
        client, _ = cast("tuple[_Client, int]", batch.requests[0].context)
        self._is_contended = self._loops[client.process].is_busy
        if self._measured_from_ns:
            executions, count = self._executions[name], len(batch.requests)
            executions.batches += 1
            executions.requests += count
            executions.rows += count * batch.size
            executions.others += count * others
            executions.work_ns += count * work_ns
            executions.busy_ns += work_ns * self._system.models[name].threads
            executions.duration_ns += count * (batch.exec_end_ns - batch.exec_start_ns)
            executions.queue_ns += sum([batch.exec_start_ns - request.arrival_ns for request in batch.requests])
        # Without work it is called at once: a busy loop counts for the passes of the requests.
        if client.route.cost.batch_ns:
            self._loops[client.process].call(client.route.cost.batch_ns, functools.partial(self._end_steps, batch))
        else:
            self._end_steps(batch)

    def _end_steps(self, batch: Batch) -> None:
        for request in batch.requests:
            self._end_step(*cast("tuple[_Client, int]", request.context))

    def _after_batch(self, gap_ns: float, batch: Batch, proceed: Callable[[], None]) -> None:
        """Call `proceed` after the gap; a busy event loop keeps the interpreter's lock until it has passed it on."""
        client, _ = cast("tuple[_Client, int]", batch.requests[0].context)
        if self._is_contended:
            self._loops[client.process].call(0.0, proceed)
        elif gap_ns:
            self._timeline.at(self._timeline.now_ns + int(gap_ns), proceed)
        else:
            proceed()

    def _end_step(self, client: _Client, index: int) -> None:
        route, left, ready = client.route, client.left, []
        for position, step in enumerate(route.steps):
            if index in step.needs:
                left[position] -= 1
                if not left[position]:
                    ready.append(position)
        left[index] = -1
        if ready:
            self._pass(client, functools.partial(self._enqueue, client, ready))
        elif all(each < 0 for each in left):
            self._pass(client, functools.partial(self._respond, client))

    def _respond(self, client: _Client) -> None:
        cost = client.route.cost
        self._generate(client, cost.client_ns if self._load.concurrency else cost.client_ns / 2, self._end)

    def _end(self, client: _Client) -> None:
        if self._measured_from_ns:
            self._latencies_ns.append(self._timeline.now_ns - client.begun_ns)
        self._ended(client)

    def _drop(self, dropped: Sequence[Dropped]) -> None:
        for request, _ in dropped:
            self._reject(cast("tuple[_Client, int]", request.context)[0])

    def _reject(self, client: _Client) -> None:
        if client.is_dropped:
            return
        client.is_dropped = True
        self._dropped_count += 1
        # Other steps of the request may still execute, so the next one is another object.
        self._pass(client, functools.partial(self._ended, _Client()))

    def _ended(self, client: _Client) -> None:
        self._ended_count += 1
        if self._ended_count == self._warm_up_count:
            self._measure()
        if self._ended_count >= self._count:
            self._timeline.is_stopped = True
        elif self._load.concurrency:
            self._begin(client)

    def _measure(self) -> None:
        if not self._measured_from_ns:
            self._measured_from_ns = float(self._timeline.now_ns)
            self._measured_loop_ns = sum(loop.busy_ns for loop in self._loops)


_HEADER = RequestHeader(model_name="", parameters={})


def simulate(system: System, load: SimulatedLoad, seed: int = 0, steps: int = _STEPS) -> Simulated:
    """Return what a system does under a load; `steps` is the number of executions of requests, at least."""
    return Simulation(system, load, seed, steps).run()
