"""Questions to all members, and the one answer that their answers make."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from naiad.server.processes.channel import ChannelError
from naiad.server.processes.ledger import Ledger
from naiad.server.processes.member_process import MemberProcess
from naiad.server.processes.merged_index import merge_index
from naiad.server.processes.messages import Answer, AskIndex, AskMetrics, AskStatistics, Question
from naiad.telemetry.exposition import format_family

_log = logging.getLogger(__name__)

_TIMEOUT_S = 5.0
"""A member whose event loop does not answer for so long is left out."""


class Inquiry:
    """Asks whoever serves."""

    def __init__(self, serving: Callable[[], Sequence[MemberProcess]], slot_count: int) -> None:
        self._serving = serving
        self._slot_count = slot_count
        self.ledger = Ledger()
        self.restart_count = 0
        """Processes that were started in the place of one that had died."""
        self.families: list[Callable[[], str]] = []
        """Renders metrics of the server that no process has."""

    async def answer(self, question: Question) -> Answer:
        """Return what all processes together say."""
        answers = await self._ask(question)
        if isinstance(question, AskIndex) and not answers:
            raise ChannelError("no process could tell; the log says why")
        if isinstance(question, AskStatistics):
            return self.ledger.statistics()
        if isinstance(question, AskMetrics):
            return self._exposition()
        if isinstance(question, AskIndex):
            return merge_index([index for index in answers if isinstance(index, Sequence)])
        # Ready is what is whole: as long as a process is missing the others carry its load.
        return len(answers) == self._slot_count and all(answers)

    async def note_all(self) -> None:
        """Note what the members have counted, so that no more is lost with one than it counted since."""
        for question in (AskStatistics(), AskMetrics()):
            await self._ask(question)

    async def _ask(self, question: Question) -> list[object]:
        answers = await asyncio.gather(*[self._ask_one(member, question) for member in self._serving()])
        return [answer for answer in answers if answer is not None]

    async def _ask_one(self, member: MemberProcess, question: Question) -> object:
        try:
            answer = await member.ask(question, _TIMEOUT_S)
        except ChannelError as error:
            _log.warning("%s was left out of an answer: %s", member.name, error)
            return None
        # What a member said with its last breath has been buried already, without it.
        if member.is_alive:
            if isinstance(question, AskStatistics):
                self.ledger.note_statistics(member.slot, answer)  # type: ignore[arg-type]  # as asked
            elif isinstance(question, AskMetrics):
                self.ledger.note_metrics(member.slot, answer)  # type: ignore[arg-type]  # as asked
        return answer

    def _exposition(self) -> bytes:
        families = (
            ("naiad_processes", "gauge", "Server processes that serve", len(self._serving())),
            (
                "naiad_process_restarts_total",
                "counter",
                "Server processes that were started again after one died",
                self.restart_count,
            ),
        )
        own = [format_family(name, kind, text, [f"{name} {value}"]) for name, kind, text, value in families]
        own += [render() for render in self.families]
        return self.ledger.metrics().render() + ("\n".join(own) + "\n").encode()
