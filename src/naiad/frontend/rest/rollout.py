"""The actions that change rollouts over REST. They respond when all processes have applied the change."""

from collections.abc import Callable, Mapping
from functools import partial

from naiad.config.rollout.rollout_status import figures
from naiad.core.errors import InferError, unavailable
from naiad.engine.engine import Engine
from naiad.engine.on_demand.held_requests import ColdModelError
from naiad.frontend.cold_models import hold_context
from naiad.frontend.context import HttpContext
from naiad.frontend.reply_headers import JSON_HEADERS
from naiad.frontend.router import Action, respond_infer_error
from naiad.operations.models import CHANGE_ROLLOUT, END_ROLLOUT
from naiad.operations.operation import AnyOperation
from naiad.protocol.json.management.rollout import decode_change, encode_status


def rollout_actions(engine: Engine) -> Mapping[AnyOperation, Action]:
    """Return the actions of the commands about rollouts."""

    def change(context: HttpContext, arguments: Mapping[str, str]) -> None:
        fields = decode_change(context.body)
        _change(engine, context, arguments["model"], fields)

    def end(context: HttpContext, arguments: Mapping[str, str]) -> None:
        _change(engine, context, arguments["model"], None)

    return {CHANGE_ROLLOUT: change, END_ROLLOUT: end}


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
        elif isinstance(error, ColdModelError):
            hold_context(context, error, partial(_change, engine, context, model, fields))
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
