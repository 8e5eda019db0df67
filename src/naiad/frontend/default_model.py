"""The model of requests that name none."""

from naiad.core.errors import excerpt, invalid_argument
from naiad.core.model import name_of
from naiad.engine.inference import Engine

_MAX_LISTED_MODELS = 5


def default_model(engine: Engine, name: str, advice: str) -> str:
    """Return `name`; if it is empty, the name of the only ready model. Raises InferError without one."""
    if name:
        return name
    names = sorted({name_of(row.name) for row in engine.repository_index(ready_only=True)})
    if len(names) == 1:
        return names[0]
    more = ", ..." if len(names) > _MAX_LISTED_MODELS else ""
    listed = f" ({', '.join(map(excerpt, names[:_MAX_LISTED_MODELS]))}{more})" if names else ""
    raise invalid_argument(
        "Expect the model repository contains only a single model if default model is not specified; "
        f"{len(names)} models are ready{listed}: {advice}"
    )
