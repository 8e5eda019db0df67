"""The model of requests that name none."""

from naiad.core.errors import excerpt, invalid_argument, unavailable
from naiad.core.model import ModelState, name_of
from naiad.engine.inference import Engine

_MAX_LISTED_MODELS = 5


def default_model(engine: Engine, name: str, advice: str) -> str:
    """Return `name`; if it is empty, the name of the only ready model.

    Raises InferError: UNAVAILABLE while models load, since another one may become ready; INVALID_ARG without one.
    """
    if name:
        return name
    rows = engine.repository_index()
    is_any_ready = any(row.state is ModelState.READY for row in rows)
    if engine.is_starting or (not is_any_ready and any(row.state is ModelState.LOADING for row in rows)):
        raise unavailable(
            "the server is still loading its models: send the request again when the server is ready, or name the "
            "model"
        )
    return only_model(engine, advice)


def only_model(engine: Engine, advice: str) -> str:
    """Return the name of the only ready model. Raises InferError(INVALID_ARG) without one."""
    names = sorted({name_of(row.name) for row in engine.repository_index(ready_only=True)})
    if len(names) == 1:
        return names[0]
    more = ", ..." if len(names) > _MAX_LISTED_MODELS else ""
    listed = f" ({', '.join(map(excerpt, names[:_MAX_LISTED_MODELS]))}{more})" if names else ""
    raise invalid_argument(
        "Expect the model repository contains only a single model if default model is not specified; "
        f"{len(names)} models are ready{listed}: {advice}"
    )
