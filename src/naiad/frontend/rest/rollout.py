"""The routes of `/v2/models/{model}/rollout`: GET shows the rollout of a model, POST changes it, DELETE ends it."""

from collections.abc import Callable, Mapping

from naiad.config.rollout.status import figures
from naiad.core.errors import InferError, unavailable
from naiad.engine.engine import Engine
from naiad.frontend.context import HttpContext
from naiad.frontend.control_audit import audited
from naiad.frontend.router import JSON_HEADERS, Route, respond_infer_error
from naiad.protocol.json.rollout import decode_change, encode_status

PATH = r"/v2/models/(?P<model>[^/]++)/rollout"


def rollout_routes(engine: Engine) -> list[Route]:
    """Return the routes of rollouts."""

    def show(context: HttpContext, arguments: Mapping[str, str]) -> None:
        _respond(engine, context, arguments["model"])

    def change(context: HttpContext, arguments: Mapping[str, str]) -> None:
        fields = decode_change(context.body)
        _change(engine, context, arguments["model"], fields)

    def end(context: HttpContext, arguments: Mapping[str, str]) -> None:
        _change(engine, context, arguments["model"], None)

    # A rollout decides which code serves, as a load does: what restricts loads restricts it as well.
    return [Route(PATH, "model-repository", {"GET": show, "POST": audited(change), "DELETE": audited(end)})]


def _change(engine: Engine, context: HttpContext, model: str, fields: Mapping[str, object] | None) -> None:
    if engine.phase.is_draining:
        raise unavailable("Server not ready")
    key = engine.rollout_commands.key(model)
    before = engine.rollouts.state(key)
    is_rollback = fields is not None and fields.get("action") == "rollback"
    counts = engine.rollouts.counts().get(key) if is_rollback else None

    def done(error: InferError | None) -> None:
        if error is None:
            if before is not None and counts is not None:
                engine.rollout_commands.report_rollback(key, before, "client", figures(before, counts))
            _respond(engine, context, model)
        else:
            respond_infer_error(context, error)

    engine.rollout_commands.changes.change(model, fields, done)


def _respond(engine: Engine, context: HttpContext, model: str) -> None:
    _answer(
        context, lambda: context.respond(200, JSON_HEADERS, (encode_status(engine.rollout_commands.status(model)),))
    )


def _answer(context: HttpContext, work: Callable[[], None]) -> None:
    """Do the rest of a request; an InferError becomes the response."""
    try:
        work()
    except InferError as error:
        respond_infer_error(context, error)
