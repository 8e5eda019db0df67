"""Groups of ranks: an instance whose model is distributed over several worker processes (tensor parallelism).

Rank 0 is an ordinary worker: `WorkerLife` starts, watches and restarts it, and its responses count. `RankGroup` is
that worker with its peers. Each peer has a thread, which starts it, forwards its output and waits for its exit.

    begin    RankConversation sends each batch to all ranks. They meet in collective operations (torch.distributed).
    finish   A batch ends when all ranks have responded: a rank that still executes would meet the next batch.
    failure  If all ranks report an error, the batch fails with that of rank 0, and the group continues. If only some
             ranks do, the other ranks may wait in a collective operation for them: the group is killed.
    death    The exit of a peer kills rank 0 with the reason; the exit of rank 0 kills its peers. Everything else
             is the death of a worker: requests fail with the reason, the group restarts, queued requests wait.

With several nodes, the ranks of this machine come first. Peers of other nodes are `RemoteWorker`s (`rendezvous.py`).

The environment variables RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT are named as torchrun does.
"""

import contextlib
import os
import selectors
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from naiad.backend.workers.conversation.conversation import Conversation, Terms
from naiad.backend.workers.life_cycle import StartError, begin, end
from naiad.backend.workers.process.worker_process import Event, WorkerProcess
from naiad.backend.workers.ranks.rendezvous import RemoteWorker, Rendezvous, listen
from naiad.backend.workers.worker_settings import WorkerSettings
from naiad.core.batch import Batch, SequenceEnd
from naiad.core.errors import ErrorCode, InferError, cause_of, invalid_argument
from naiad.core.response import InferResponse
from naiad.telemetry.last_resort import report
from naiad.worker.channel import frame as frames
from naiad.worker.channel.frame import MAX_FRAME_BYTES, ChannelClosedError, ChannelError, Frame

_HOST = "127.0.0.1"
_LARGEST_REMOTE_BYTES = MAX_FRAME_BYTES // 2
_READY_POLL_S = 0.05
_OWN_REPORT_S = 1.0
"""Time for rank 0 to report an error of `initialize` that all ranks have."""
_STRAGGLER_S = 5.0
"""Time for the other ranks to respond after one has failed."""

RankNotes = Callable[[int], Mapping[str, Any]]
"""The notes of a rank's worker."""


def free_port(host: str) -> int:
    """Return a free port of an address of this machine."""
    with listen(host, 0) as probe:
        return int(probe.getsockname()[1])


def rank_variables(rank: int, settings: WorkerSettings, host: str, port: int) -> dict[str, str]:
    """Return the environment variables of a rank, named as torchrun does."""
    local = settings.local_rank_count
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % local),
        "GROUP_RANK": str(rank // local),
        "WORLD_SIZE": str(settings.tensor_parallel_size),
        "LOCAL_WORLD_SIZE": str(local),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
    }


class RankGroup(WorkerProcess):
    """The process of rank 0, and its peers."""

    def __init__(
        self, settings: WorkerSettings, environment: Mapping[str, str], notes: RankNotes, **process: Any
    ) -> None:
        """`process` are further arguments of WorkerProcess. Raises OSError, InferError."""
        host = settings.rendezvous[0] or _HOST
        self._rendezvous = Rendezvous(settings, process["model"]) if settings.nnodes > 1 else None
        variables = partial(rank_variables, settings=settings, host=host, port=free_port(host))
        try:
            super().__init__(settings.interpreter.executable, {**environment, **variables(0)}, **process)
        except OSError:
            self._close_rendezvous()
            raise
        launch = partial(
            WorkerProcess,
            settings.interpreter.executable,
            model=process["model"],
            transport_bytes=settings.transport_bytes,
        )
        self.is_distributed = settings.nnodes > 1
        """Whether there are ranks on other machines."""
        self.peers: list[_Peer] = []
        try:
            for rank in range(1, settings.tensor_parallel_size):
                if self._rendezvous is None or rank < settings.local_rank_count:
                    start: Callable[[], WorkerProcess] = partial(launch, {**environment, **variables(rank)})
                else:
                    start = partial(self._rendezvous.join, rank, variables(rank))
                self.peers.append(_Peer(self, rank, settings, start, notes(rank)))
        except OSError:  # too many open files
            self.kill()
            self._process.wait()
            self.close()
            raise

    def await_ready(self, wake_fd: int, is_closing: Callable[[], bool]) -> None:
        """Wait until all peers are ready. Raises StartError."""
        while not all(peer.is_ready.is_set() for peer in self.peers):
            event = self.wait(_READY_POLL_S, wake_fd)
            if event is Event.EXIT:
                raise StartError(ErrorCode.INTERNAL, f"the worker {self.exit_text}")
            if event is Event.WAKE and is_closing():
                raise StartError(ErrorCode.UNAVAILABLE, "the model is being unloaded")
        self._close_rendezvous()

    def finalize_peers(self) -> None:
        """Let the peers finalize the model and exit."""
        for peer in self.peers:
            peer.stop(is_final=True)

    def dump_stacks(self) -> None:
        """Let all ranks write their stacks."""
        super().dump_stacks()
        for peer in self.peers:
            if peer.process is not None:
                peer.process.dump_stacks()

    def close(self) -> None:
        """Close the channels of all ranks, which have exited."""
        super().close()
        self._close_rendezvous()
        for peer in self.peers:
            peer.close()

    def _close_rendezvous(self) -> None:
        if self._rendezvous is not None:
            self._rendezvous.close()
            self._rendezvous = None

    def _finish(self) -> None:
        super()._finish()
        if not self.kill_text:
            self.exit_text += " (rank 0)"
        for peer in self.peers:
            peer.stop()


class _Peer:
    """One rank above 0, in a thread of its own."""

    def __init__(
        self,
        group: RankGroup,
        rank: int,
        settings: WorkerSettings,
        launch: Callable[[], WorkerProcess],
        notes: Mapping[str, Any],
    ) -> None:
        self.rank = rank
        self.process: WorkerProcess | None = None
        self.is_ready = threading.Event()
        self._group = group
        self._settings = settings
        self._launch = launch
        self._notes = notes
        self._is_stopping = self._is_final = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._thread = threading.Thread(target=self._run, name=f"rank {rank} of worker:{group.pid}", daemon=True)
        self._thread.start()

    def stop(self, *, is_final: bool = False) -> None:
        """End the process; with `is_final` it has time to finalize the model."""
        self._is_final = self._is_final or is_final
        self._is_stopping = True
        self.wake()

    def close(self) -> None:
        """Close the channel when the process has exited."""
        self.stop()
        self._thread.join()
        if self.process is not None:
            self.process.close()
        wake_write, self._wake_write = self._wake_write, -1
        os.close(self._wake_read)
        os.close(wake_write)

    def wake(self) -> None:
        """Wake the thread: it sends waiting data, and checks whether to stop."""
        with contextlib.suppress(OSError):  # a full pipe wakes it anyway
            os.write(self._wake_write, b".")

    def _run(self) -> None:
        try:
            self._live()
        except BaseException as error:
            # The group cannot execute without this rank, and nothing else watches it.
            report(f"the thread of rank {self.rank}", error)
            self._fail(f"cannot be watched: {cause_of(error)}")
            if self.process is not None:
                self.process.kill()

    def _live(self) -> None:
        try:
            self.process = process = self._launch()
        except OSError as error:
            self._fail(f"cannot be started: {error}")
            return
        process.channel.on_full = self.wake
        try:
            begin(process, self._settings, self._notes, self._wake_read, lambda: self._is_stopping)
        except StartError as error:
            self._group.gone.wait(_OWN_REPORT_S)
            self._fail(f"failed to start: {error.message}")
        else:
            self.is_ready.set()
            while not self._is_stopping and process.wait(None, self._wake_read) is not Event.EXIT:
                pass
            if process.gone.is_set():
                self._fail(process.exit_text)
        end(process, self._settings.finalize_timeout_s if self._is_final else 0.0, self._wake_read)

    def _fail(self, how: str) -> None:
        if not self._is_stopping:
            self._group.kill(f"was killed because rank {self.rank} {how}")


class _PeerConversation(Conversation):
    """A conversation with a rank whose responses do not count."""

    def _responses(self, frame: Frame, batch: Batch | None) -> Sequence[InferResponse]:
        return ()


class _RemoteConversation(_PeerConversation):
    """A conversation with a rank of another node: all tensors are in the frames."""

    def __init__(self, process: WorkerProcess, terms: Terms) -> None:
        super().__init__(process, terms)
        self._inline_bytes = _LARGEST_REMOTE_BYTES


class RankConversation(Conversation):
    """The conversation with all ranks of a group."""

    def __init__(self, process: RankGroup, terms: Terms) -> None:
        super().__init__(process, terms)
        self._group = process
        self._peers: list[_PeerConversation] = []
        # One descriptor for the channels of all ranks: that of epoll or kqueue.
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._channel.fileno(), selectors.EVENT_READ, 0)
        for peer in process.peers:
            assert peer.process is not None  # it is ready
            kind = _RemoteConversation if isinstance(peer.process, RemoteWorker) else _PeerConversation
            conversation = kind(peer.process, terms)
            self._peers.append(conversation)
            self._selector.register(conversation.fileno(), selectors.EVENT_READ, peer.rank)
        self._outcomes: dict[int, Sequence[InferResponse] | InferError] = {}
        """What the ranks have responded to the batch sent."""
        self._straggler_timer: threading.Timer | None = None

    @property
    def has_blocks(self) -> bool:
        """Whether there is shared memory to release later."""
        return super().has_blocks or any(peer.has_blocks for peer in self._peers)

    @property
    def is_broken(self) -> bool:
        """Whether a rank has exited, or its channel is unusable."""
        return super().is_broken or any(peer.is_broken for peer in self._peers)

    def fileno(self) -> int:
        """Return the descriptor that is readable when a rank has responded or died."""
        return self._selector.fileno()

    def begin(self, batch: Batch) -> None:
        """Send a batch to all ranks. Raises InferError if it is too large."""
        if self._group.is_distributed:
            _check_size(batch)
        batch.late = None  # after `execute`, only one rank would respond
        self._outcomes.clear()
        super().begin(batch)
        for rank, peer in enumerate(self._peers, 1):
            try:
                peer.begin(batch)
            except InferError as error:
                self._process.kill(f"was killed because a batch could not be sent to rank {rank}: {error.message}")

    def finish(self) -> Sequence[InferResponse] | None:
        """Wait for input from any rank. Returns the responses of rank 0 when all have responded, None before.

        Raises InstanceDiedError, InferError if the batch failed in all ranks.
        """
        if not self.is_broken:
            for key, _ in self._selector.select():
                self._take(key.data)
        if self.is_broken:
            self._settle()
            return None
        if len(self._outcomes) <= len(self._peers):
            return None
        return self._outcome()

    def _take(self, rank: int) -> None:
        """Receive the response of a rank."""
        batch = self._batch
        try:
            if rank:
                outcome: Sequence[InferResponse] | InferError | None = self._peers[rank - 1].finish()
            else:
                frame = self._receive()
                if frame is None:
                    return
                outcome = self._responses(frame, batch) if frame.kind == frames.EXECUTED else self._failure(frame)
        except ChannelError as error:
            self._break(error)
            return
        except InferError as error:
            outcome = error
        if outcome is None:
            return
        if batch is not None:
            batch.compute_end_ns = time.monotonic_ns()
        self._outcomes[rank] = outcome
        if isinstance(outcome, InferError) and len(self._outcomes) <= len(self._peers):
            self._limit_stragglers(rank, outcome)

    def _outcome(self) -> Sequence[InferResponse] | None:
        """Return the responses, once all ranks have responded; None if they disagree. Raises InferError."""
        self._stop_timer()
        failed = {rank: each for rank, each in self._outcomes.items() if isinstance(each, InferError)}
        if failed and len(failed) < len(self._outcomes):
            rank = min(failed)
            why = _first_line(failed[rank])
            self._process.kill(f"was killed because rank {rank} failed and others did not: {why}")
            self._break(ChannelClosedError(""))
            return None
        result = self._outcomes[0]
        self._ended()
        self.has_answered = True
        if isinstance(result, InferError):
            raise result
        return result

    def _limit_stragglers(self, rank: int, error: InferError) -> None:
        """Kill the group if the other ranks do not respond soon: they may wait for the failed one."""
        if self._straggler_timer is None:
            why = (
                f"was killed because rank {rank} failed ({_first_line(error)}) and others did not respond within "
                f"{_STRAGGLER_S:g} s"
            )
            self._straggler_timer = threading.Timer(_STRAGGLER_S, self._process.kill, [why])
            self._straggler_timer.daemon = True
            self._straggler_timer.start()

    def _stop_timer(self) -> None:
        if self._straggler_timer is not None:
            self._straggler_timer.cancel()
            self._straggler_timer = None

    def _settle(self) -> None:
        """Raise InstanceDiedError once the cause of a rank's death is known."""
        if self._broken is None and not self._process.settled.is_set():
            for peer in self._peers:
                if peer.is_broken:
                    peer.finish()  # it kills a rank that has closed its channel but does not exit
            return
        self._stop_timer()
        super()._settle()

    def tidy(self) -> None:
        """Release the idle memory of all ranks."""
        super().tidy()
        for peer in self._peers:
            peer.tidy()

    def end_sequences(self, ended: Sequence[SequenceEnd]) -> None:
        """Report ended sequences to all ranks."""
        super().end_sequences(ended)
        for peer in self._peers:
            peer.end_sequences(ended)

    def finalize(self) -> bool:
        """Let all ranks finalize the model and exit; return False if rank 0 has exited already."""
        self._group.finalize_peers()
        for peer in self._peers:
            peer.finalize()
        return super().finalize()

    def close(self) -> None:
        """Release the descriptor."""
        self._stop_timer()
        self._selector.close()


def _check_size(batch: Batch) -> None:
    size_bytes = sum(len(data) for request in batch.requests for data in request.data)
    if size_bytes > _LARGEST_REMOTE_BYTES:
        raise invalid_argument(
            f"a batch for ranks on other machines has {size_bytes} bytes of inputs; the limit is "
            f"{_LARGEST_REMOTE_BYTES} bytes: use a smaller max_batch_size or smaller requests"
        )


def _first_line(error: InferError) -> str:
    return error.message.partition("\n")[0]
