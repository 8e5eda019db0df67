"""`naiad consume`: a model between two queues, until a signal ends it."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence

from naiad.cli.parser import BAD_OPTION, FAILED, Parser, fail, parse_header, read_columns, time_in
from naiad.cli.status_line import StatusLine
from naiad.client import ConnectionFailedError, InferError
from naiad.tools.consume import ConsumeJob, ConsumeProgress, ConsumeSummary, Consumption
from naiad.tools.consume.consume_job import DEFAULT_CLAIM_AFTER_S, DEFAULT_GROUP, DEFAULT_MAX_DELIVERIES
from naiad.tools.consume.queues.message_queue import QueueAwayError
from naiad.tools.predict.model_host import is_address
from naiad.tools.predict.prediction_job import DEFAULT_TIMEOUT_S, PredictJob

SOME_DEAD = 3
"""Exit status when messages became dead letters."""
_DESCRIPTION = """\
Run MODEL over the messages of a queue and write one answer for each to another queue. A message is acknowledged after
its answer is written: a consumer that is killed loses none, and the id in the answer shows which were answered twice.
"""
_EPILOG = """\
example: naiad consume ranker --from redis://queue/requests --to redis://queue/scores --url grpc://models:8001
SIGTERM and Ctrl-C end it in order: what is in flight is answered and acknowledged.
Exit status: 0 ended in order; 1 an error ended it; 2 invalid command line, or an address that does not answer at the
start; 3 ended in order, and some messages became dead letters.
"""


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        prog="naiad consume",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="name of the model")
    forms = "redis://HOST/STREAM, nats://HOST/STREAM or kafka://HOST/TOPIC"
    add("--from", dest="source", required=True, metavar="QUEUE", help=f"where messages come from: {forms}")
    add("--to", required=True, metavar="QUEUE", help="where answers go")
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("-u", "--url", default="", metavar="URL", help="a running server: grpc://HOST:PORT")
    place.add_argument("--model-repository", default="", metavar="DIR", help="repository whose model is loaded here")
    add("-x", "--model-version", default="", metavar="N", help="version of the model; default the newest")
    _add_queue_flags(parser)
    _add_row_flags(parser)
    return parser


def _add_queue_flags(parser: Parser) -> None:
    add = parser.add_argument_group("queues").add_argument
    add("--group", default=DEFAULT_GROUP, metavar="NAME", help="consumers of a group share the messages")
    add("--consumer", default="", metavar="NAME", help="name in the group; default host and random characters")
    add("--dead-letters", default="", metavar="QUEUE", help="for messages without an answer; default beside FROM")
    add(
        "--max-deliveries",
        type=int,
        default=DEFAULT_MAX_DELIVERIES,
        metavar="N",
        help=f"deliveries before a message becomes a dead letter; default {DEFAULT_MAX_DELIVERIES}",
    )
    add("--max-in-flight", type=int, default=0, metavar="N", help="messages read and not answered; default by model")
    add(
        "--claim-after",
        type=time_in("s"),
        default=DEFAULT_CLAIM_AFTER_S,
        metavar="TIME",
        help=f"when messages of a silent consumer go to another; default {DEFAULT_CLAIM_AFTER_S:g}",
    )
    add("--max-length", type=int, default=0, metavar="N", help="about the most answers the queue keeps; default all")
    add("--until-empty", action="store_true", help="end when all messages of the group are acknowledged")


def _add_row_flags(parser: Parser) -> None:
    add = parser.add_argument_group("rows").add_argument
    add(
        "--column",
        action="append",
        default=[],
        metavar="COLUMN=INPUT",
        help="column of the messages for an input of the model, where the names differ",
    )
    add("--key", action="append", default=[], metavar="COLUMN", help="column of the messages that the answer repeats")
    add("--outputs", default="", metavar="A,B", help="outputs of the model in the answer; default all")
    add("--rows-per-request", type=int, default=0, metavar="N", help="default max_batch_size of the model")
    add("--concurrency", type=int, default=0, metavar="N", help="requests at once; default 2 for each instance")
    add(
        "--timeout",
        type=time_in("s"),
        default=DEFAULT_TIMEOUT_S,
        metavar="TIME",
        help=f"for a request, with retries while the server is unavailable; default {DEFAULT_TIMEOUT_S:g}",
    )
    add("--allow-pickle", action="store_true", help="load pickles of the repository, which execute code")
    add("-H", "--header", action="append", default=[], metavar="NAME:VALUE", help="header or metadata for a server")
    add("-q", "--quiet", action="store_true", help="no progress display and no summary")


def read_job(flags: argparse.Namespace) -> ConsumeJob:
    """Return the job. Raises ValueError and InferError for a wrong flag."""
    if flags.url and not is_address(flags.url):
        raise ValueError(f"--url is '{flags.url}'; expected grpc://HOST:PORT or http://HOST:PORT")
    rows = PredictJob(
        flags.url or flags.model_repository,
        flags.model,
        (flags.source,),
        flags.to,
        version=flags.model_version,
        columns=read_columns(flags.column),
        outputs=tuple(name for name in flags.outputs.split(",") if name),
        rows_per_request=flags.rows_per_request,
        concurrency=flags.concurrency,
        timeout_s=flags.timeout,
        keys=tuple(flags.key),
        headers=dict(map(parse_header, flags.header)),
        allow_pickle=flags.allow_pickle,
    )
    named = {"consumer": flags.consumer} if flags.consumer else {}
    return ConsumeJob(
        rows,
        group=flags.group,
        dead_letters=flags.dead_letters,
        max_deliveries=flags.max_deliveries,
        max_in_flight=flags.max_in_flight,
        claim_after_s=flags.claim_after,
        max_length=flags.max_length,
        until_empty=flags.until_empty,
        **named,
    )


def run(argv: Sequence[str]) -> int:
    """Run the verb and return the exit status."""
    flags = make_parser().parse_args(list(argv))
    display = ConsumeDisplay(is_quiet=flags.quiet)
    try:
        consumption = Consumption(read_job(flags), display)
    except (ValueError, InferError) as error:
        return fail("naiad consume", _in_flags(str(error)), BAD_OPTION)
    try:
        summary = _run(consumption)
    except InferError as error:
        display.clear()
        is_away = isinstance(error, QueueAwayError | ConnectionFailedError) and not display.has_begun
        return fail("naiad consume", _in_flags(error.message.strip()), BAD_OPTION if is_away else FAILED)
    display.clear()
    if not flags.quiet:
        print(summary_text(summary, flags.model))
    return SOME_DEAD if summary.dead else 0


def _run(consumption: Consumption) -> ConsumeSummary:
    """Consume until the end, and end in order after the first SIGTERM or SIGINT; the second one ends it at once."""

    async def main() -> ConsumeSummary:
        loop = asyncio.get_running_loop()

        def stop(number: int) -> None:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
            consumption.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop, number)
        return await consumption.run()

    return asyncio.run(main())


def _in_flags(message: str) -> str:
    """Return an error about a field of a job as one about the flag that sets it."""
    for name in ("max_deliveries", "max_in_flight", "max_length", "claim_after_s", "timeout_s", "rows_per_request"):
        message = message.replace(name, f"--{name.removesuffix('_s').replace('_', '-')}")
    return message


def summary_text(summary: ConsumeSummary, model: str) -> str:
    """Return what was done."""
    rate = f", {summary.answered / summary.seconds:,.0f} messages/s" if summary.answered and summary.seconds else ""
    lines = [f"{model}: {summary.answered:,} messages answered in {summary.seconds:.1f} s{rate}"]
    if summary.redelivered:
        lines.append(f"{summary.redelivered:,} had been delivered before; the id in an answer shows a second one")
    if summary.dead:
        lines.append(f"{summary.dead:,} became dead letters, with their reasons")
    if summary.unanswered:
        lines.append(f"{summary.unanswered:,} were in flight at the end; the group delivers them again")
    return "\n".join(lines)


class ConsumeDisplay:
    """Shows how many messages are answered."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._status = StatusLine(is_quiet=is_quiet, stream=sys.stderr)
        self.has_begun = False
        """Whether messages are being read."""

    def __call__(self, progress: ConsumeProgress) -> None:
        """Show the state of the consumer."""
        self.has_begun = not progress.is_loading
        self._status.show(progress_text(progress), "load" if progress.is_loading else "consume")

    def clear(self) -> None:
        """Remove the line."""
        self._status.clear()


def progress_text(progress: ConsumeProgress) -> str:
    """Return the state of a consumer in one line."""
    if progress.is_loading:
        return "loading the model"
    text = f"{progress.answered:,} answered, {progress.rate_per_s:,.0f} messages/s, {progress.in_flight:,} in flight"
    if progress.dead:
        text += f", {progress.dead:,} dead letters"
    return f"{text}; {progress.trouble}" if progress.trouble else text
