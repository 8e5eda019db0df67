"""Recorded traffic as requests: the same models, shapes, sequences and moments, with their data if it is there."""

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from naiad.core.request import RequestedOutput, RequestHeader
from naiad.core.tensor import TensorSpec, to_buffer
from naiad.tools.perf.inputs.generated import random_array
from naiad.tools.perf.inputs.recording import RecordedRequest, RecordingError, read_recording
from naiad.tools.perf.inputs.templates import TemplateSet, is_reserved, waits_for_empty_final
from naiad.tools.perf.perf_exchange import RequestTemplate
from naiad.tools.perf.perf_plan import InputSettings, Mode, Plan, Protocol, Schedule, ServerTarget
from naiad.tools.values.tensor import InputError, ModelTensor

_WRONG_REQUESTS = ("INVALID_ARG", "NOT_FOUND", "UNSUPPORTED", "ALREADY_EXISTS", "PERMISSION_DENIED")
"""Outcomes that the request itself has caused: to send it again would measure nothing."""


@dataclass(frozen=True, slots=True)
class ReplayedRequest:
    """What request number i of the schedule sends."""

    model_index: int
    template_index: int
    sequence_id: int
    """0 for no sequence. Ids are the run's own, one for each recorded id."""
    sequence_start: bool
    sequence_end: bool


@dataclass(frozen=True, slots=True)
class Replay:
    """Recorded traffic, ready to be sent."""

    schedule: Schedule
    requests: Sequence[ReplayedRequest]
    """In the order of the schedule."""
    models: Sequence[str]
    inputs: Sequence[TemplateSet]
    """Of each model."""
    services: Sequence[ServerTarget]
    """By route of the templates."""
    notes: Sequence[str] = ()
    """Which requests go another way than they came, a sentence each."""


_TRANSPORTS: Mapping[str, tuple[Protocol, Mode]] = {
    "http": (Protocol.HTTP, Mode.UNARY),
    "generate": (Protocol.HTTP, Mode.UNARY),
    "grpc": (Protocol.GRPC, Mode.UNARY),
    "grpc_stream": (Protocol.GRPC, Mode.STREAM),
    # The generator reads no streamed responses over HTTP; a stream of gRPC brings the same responses.
    "http_stream": (Protocol.GRPC, Mode.STREAM),
}


class _Routes:
    """Finds the service for each recorded request: over the transport by which it came, where there is an address."""

    def __init__(self, plan: Plan) -> None:
        self._default = plan.service
        others = [plan.replay_service] if plan.replay_service is not None else []
        self._by_protocol = {each.protocol: each for each in (*others, plan.service)}
        # A model in this process has no transport, and `--streaming` asks for streams in place of the recorded one.
        self._is_fixed = plan.service.protocol is Protocol.IN_PROCESS or plan.service.mode is Mode.STREAM
        self._changed: Counter[tuple[str, Protocol]] = Counter()
        self.services: list[ServerTarget] = []

    def of(self, transport: str) -> int:
        """Return the index of the service for a request that came by a transport."""
        service = self._service(transport)
        if service not in self.services:
            self.services.append(service)
        return self.services.index(service)

    @property
    def notes(self) -> list[str]:
        """What goes another way than it came."""
        return [
            f"{count} requests recorded over {transport} are sent over {self._default.protocol.value}; give the "
            f"server's address for {wanted.value} with --replay-url {wanted.value}://HOST:PORT"
            for (transport, wanted), count in self._changed.items()
        ]

    def _service(self, transport: str) -> ServerTarget:
        if self._is_fixed or transport not in _TRANSPORTS:
            return self._default
        protocol, mode = _TRANSPORTS[transport]
        found = self._by_protocol.get(protocol)
        if found is None:
            self._changed[transport, protocol] += 1
            return self._default
        return replace(found, mode=mode)


@dataclass(slots=True)
class _Templates:
    """The templates of a model so far; equal requests share one."""

    model: str
    templates: list[RequestTemplate] = field(default_factory=list)
    index_by_request: dict[object, int] = field(default_factory=dict)


def replay_inputs(plan: Plan) -> Replay:
    """Return the traffic of `plan.replay_files`, of the plan's models or of all if it names none.

    Inputs without recorded data are random, by the settings of the first model. Raises InputError.
    """
    recorded = _read(plan)
    wanted = {model.name for model in plan.models}
    sent = [each for each in recorded if (not wanted or each.model in wanted) and each.outcome not in _WRONG_REQUESTS]
    if not sent:
        found = ", ".join(sorted({f"'{each.model}'" for each in recorded})) or "no requests"
        raise InputError(f"{', '.join(plan.replay_files)}: no request to replay; the recording has {found}")
    if not plan.replay_speed > 0:
        raise InputError(f"replay speed {plan.replay_speed:g}: expected a number above 0")
    settings = plan.models[0].inputs if plan.models else InputSettings()
    generator = np.random.default_rng(settings.seed)
    models: dict[str, _Templates] = {}
    routes = _Routes(plan)
    numbers = _sequence_ids(sent)
    live: set[int] = set()
    requests: list[ReplayedRequest] = []
    for each in sent:
        model = models.setdefault(each.model, _Templates(each.model))
        route = routes.of(each.transport)
        key = (route, _key(each))
        index = model.index_by_request.setdefault(key, len(model.templates))
        if index == len(model.templates):
            model.templates.append(_template(each, route, routes.services[route], settings, generator))
        sequence_id = numbers.get((each.model, each.sequence_id), 0)
        # The beginning of a recording may have been overwritten: then a sequence starts with what is left of it.
        is_start = bool(sequence_id) and (each.sequence_start or sequence_id not in live)
        (live.discard if each.sequence_end else live.add)(sequence_id)
        model_index = list(models).index(each.model)
        requests.append(ReplayedRequest(model_index, index, sequence_id, is_start, each.sequence_end))
    first_ns = sent[0].arrival_ns
    offsets_ns = tuple(round((each.arrival_ns - first_ns) / plan.replay_speed) for each in sent)
    inputs = [TemplateSet(model.templates, [range(len(model.templates))]) for model in models.values()]
    return Replay(Schedule(offsets_ns), requests, list(models), inputs, routes.services, routes.notes)


def _read(plan: Plan) -> list[RecordedRequest]:
    try:
        return read_recording(plan.replay_files)
    except (RecordingError, OSError) as error:
        raise InputError(str(error)) from None


def _sequence_ids(requests: Iterable[RecordedRequest]) -> dict[tuple[str, int | str], int]:
    """Return an id for each recorded sequence: ids of the recording may be in use, and some are strings."""
    recorded = dict.fromkeys((each.model, each.sequence_id) for each in requests if each.sequence_id)
    first = random.SystemRandom().randrange(1, 1 << 30)
    return {each: first + number for number, each in enumerate(recorded)}


def _key(request: RecordedRequest) -> object:
    """Return a value that is equal for requests with the same template."""
    return (
        request.version,
        request.inputs,
        request.outputs,
        repr(sorted(request.parameters.items())),
        request.priority,
        request.timeout_us,
        request.payloads,
    )


def _template(
    request: RecordedRequest,
    route: int,
    service: ServerTarget,
    settings: InputSettings,
    generator: np.random.Generator,
) -> RequestTemplate:
    has_binary_outputs = service.has_binary_outputs
    header = RequestHeader(
        model_name=request.model,
        model_version=request.version,
        inputs=request.inputs,
        outputs=[RequestedOutput(name, binary=has_binary_outputs) for name in request.outputs],
        parameters={name: value for name, value in request.parameters.items() if not is_reserved(name)},
        priority=request.priority,
        timeout_us=request.timeout_us,
        binary_output_default=has_binary_outputs,
        wants_empty_final=waits_for_empty_final(service),
    )
    payloads = request.payloads or [None] * len(request.inputs)
    data = [
        _random(spec, settings, generator) if payload is None else payload
        for spec, payload in zip(request.inputs, payloads, strict=True)
    ]
    return RequestTemplate(header, data, source=f"recorded request at {request.arrival_ns / 1e9:.3f} s", route=route)


def _random(spec: TensorSpec, settings: InputSettings, generator: np.random.Generator) -> bytes:
    tensor = ModelTensor(spec.name, spec.datatype, spec.shape)
    return bytes(to_buffer(random_array(tensor, spec.shape, settings, generator)))
