"""Control operations over REST."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from naiad.engine.on_demand.held_requests import ColdModelError
from naiad.frontend.cold_models import hold_context
from naiad.frontend.context import HttpContext
from naiad.frontend.control.control import ControlCalls, ControlExchange
from naiad.frontend.long_work.slice_runner import SliceJob, SliceRunner
from naiad.frontend.rest.infer import cancel_job
from naiad.frontend.router import Action, respond_failure
from naiad.operations.operation import AnyOperation, MayBringFiles, RestForm, RestReply


def control_action(
    calls: ControlCalls, operation: AnyOperation, form: RestForm[Any, Any], may_bring_files: MayBringFiles
) -> Action:
    """Return the action of a control operation. Raises ValueError for one that is not declared completely."""
    if operation.call is None or form.decode is None or form.encode is None:
        raise ValueError(
            f"{operation.name}: {form.method} {form.path.text} has no action, and no decode, call and encode"
        )
    decode, encode, permit = form.decode, form.encode, operation.permit

    def decoder(context: HttpContext, arguments: Mapping[str, str]) -> Callable[[], Any]:
        if permit is None:
            return partial(decode, arguments, context.body)
        return lambda: permit(decode(arguments, context.body), may_bring_files)

    def act(context: HttpContext, arguments: Mapping[str, str]) -> None:
        calls.handle(
            ControlExchange(
                operation,
                context.client,
                decoder(context, arguments),
                encode,
                partial(_respond, context),
                partial(_fail, context, partial(act, context, arguments)),
                partial(_hold, context, calls.runner),
            )
        )

    return act


def _respond(context: HttpContext, reply: RestReply) -> None:
    headers = ((b"Content-Type", reply.content_type),)
    context.respond(reply.status, headers, (reply.body,) if reply.body else ())


def _fail(context: HttpContext, act_again: Callable[[], object], error: Exception) -> None:
    if isinstance(error, ColdModelError):
        hold_context(context, error, act_again)
    else:
        respond_failure(context, error)


def _hold(context: HttpContext, runner: SliceRunner, job: SliceJob) -> None:
    context.on_disconnect = partial(cancel_job, runner, job)
