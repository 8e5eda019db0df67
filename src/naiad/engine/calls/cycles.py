"""Finds calls of models that wait for each other for ever: every instance that could go on waits for one of them.

An instance that executes a call's parents, and can do nothing else until the call is answered, is held by it. A call
is stuck when it waits for an instance while all that may execute it (of a sequence: the one that has it) are held by
stuck calls, or need resources that those hold; or when the instance that executes it is held by one, or when it waits
for a request that is stuck (a step of an ensemble), or for one of several that all are (room in an ensemble).
"""

from collections.abc import Iterable, Sequence

from naiad.core.model_call import ModelCall
from naiad.core.request import InferRequest
from naiad.engine.cache.model import SharedRequest
from naiad.engine.ensemble.run import StepRequest


def call_of(request: InferRequest) -> ModelCall | None:
    """Return the call that a request is, or that it is made for: as a step of an ensemble, or by a cache."""
    source: InferRequest | None = request
    while isinstance(source, StepRequest | SharedRequest):
        source = source.run.request if isinstance(source, StepRequest) else source.source
    return source if isinstance(source, ModelCall) else None


def find_stuck(calls: Sequence[ModelCall]) -> list[ModelCall]:
    """Return those of `calls`, each of which holds its caller, that wait for each other for ever."""
    stuck = list(calls)
    while stuck:
        state = _State(stuck)
        left = [call for call in stuck if state.is_stuck(call)]
        if len(left) == len(stuck):
            return stuck
        stuck = left
    return stuck


class _State:
    """Judges requests, given which calls are taken for stuck."""

    def __init__(self, stuck: Iterable[ModelCall]) -> None:
        self._held = {id(call.caller) for call in stuck}
        self._parents = {id(parent) for call in stuck for parent in call.parents}

    def is_stuck(self, request: InferRequest) -> bool:
        model = request.model
        if model is None:
            return False
        if request.lane is not None:
            return all(
                id(instance) in self._held or model.is_barred(instance, self._held)
                for instance in model.candidates(request)
            )
        blockers = model.blockers(request)
        if any(self.is_stuck(each) for each in blockers):
            return True
        rivals = model.rivals(request)
        if rivals:
            return all(self.is_stuck(each) for each in rivals)
        return not blockers and id(request) in self._parents


def is_waiting(request: InferRequest) -> bool:
    """Tell whether a request, or one that it waits for, waits for an instance or is held back for those of others."""
    if request.lane is not None:
        return True
    model = request.model
    if model is None:
        return False
    return bool(model.rivals(request)) or any(is_waiting(each) for each in model.blockers(request))


def describe(call: ModelCall, stuck: Sequence[ModelCall]) -> list[str]:
    """Return the models that the circle leads through, the first of them again at its end."""
    path = [call.caller_model]
    request: InferRequest = call
    while True:
        for name in _names_to_wait(request):
            path.append(name)
            if name in path[:-1]:
                return path[path.index(name) :]
        following = _next(_last(request), stuck)
        if following is None:
            return path
        request = following
        if following.caller_model != path[-1]:
            # It waits for what another model's instance holds.
            path.append(following.caller_model)
            if following.caller_model in path[:-1]:
                return path[path.index(following.caller_model) :]


def _names_to_wait(request: InferRequest) -> list[str]:
    """Return the model of a request and, through ensembles, those down to where it waits or executes."""
    names = [request.header.model_name]
    for blocker in _awaited_requests(request)[:1]:
        names += [name for name in _names_to_wait(blocker) if name != names[0]]
    return names


def _awaited_requests(request: InferRequest) -> Sequence[InferRequest]:
    found: Sequence[InferRequest] = request.model.blockers(request) or request.model.rivals(request)
    return found


def _last(request: InferRequest) -> InferRequest:
    following = _awaited_requests(request)
    return _last(following[0]) if following else request


def _next(request: InferRequest, stuck: Sequence[ModelCall]) -> ModelCall | None:
    """Return a call that keeps the request from going on."""
    model = request.model
    instances = model.candidates(request) if request.lane is not None else ()
    held = {id(instance) for instance in instances}
    for call in stuck:
        if id(call.caller) in held or any(parent is request for parent in call.parents):
            return call
    for call in stuck:
        if any(model.is_barred(instance, {id(call.caller)}) for instance in instances):
            return call
    return None
