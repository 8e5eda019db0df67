"""The model of requests that name none."""

from collections.abc import Sequence

from naiad.core.errors import excerpt, invalid_argument, unavailable
from naiad.core.model import ModelState, name_of
from naiad.engine.engine import Engine

_MAX_LISTED_MODELS = 5


def default_model(engine: Engine, name: str, advice: str) -> str:
    """Return `name`; if it is empty, the name of the only ready model.

    Raises InferError: UNAVAILABLE while models load, since another one may become ready; INVALID_ARG without one.
    """
    if name:
        return name
    ready = _ready_models(engine)
    if engine.phase.is_starting or (not ready and _is_loading(engine)):
        raise unavailable(
            "the server is still loading its models: send the request again when the server is ready, or name the "
            "model"
        )
    return _only(ready, advice)


def only_model(engine: Engine, advice: str) -> str:
    """Return the name of the only ready model. Raises InferError(INVALID_ARG) without one."""
    return _only(_ready_models(engine), advice)


def _ready_models(engine: Engine) -> list[str]:
    return sorted({name_of(row.name) for row in engine.views.repository_index(ready_only=True)})


def _is_loading(engine: Engine) -> bool:
    return any(row.state is ModelState.LOADING for row in engine.views.repository_index())


def _only(names: Sequence[str], advice: str) -> str:
    if len(names) == 1:
        return names[0]
    more = ", ..." if len(names) > _MAX_LISTED_MODELS else ""
    listed = f" ({', '.join(map(excerpt, names[:_MAX_LISTED_MODELS]))}{more})" if names else ""
    raise invalid_argument(
        "Expect the model repository contains only a single model if default model is not specified; "
        f"{len(names)} models are ready{listed}: {advice}"
    )
