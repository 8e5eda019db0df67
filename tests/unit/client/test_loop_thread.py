"""The thread on which coroutines of other threads run."""

import asyncio
from concurrent.futures import CancelledError, Future

import pytest

from naiad.client.loop_thread import LoopThread


def test_what_begins_during_the_end_is_cancelled() -> None:
    thread = LoopThread("t")
    late: list[Future[None]] = []

    async def wait() -> None:
        await asyncio.sleep(3600)

    async def submit_when_cancelled() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            work = wait()
            with pytest.raises(RuntimeError):
                thread.submit(work)
            thread._is_closing = False  # as for a thread that has looked before the end
            late.append(thread.submit(work))
            thread._is_closing = True

    first = thread.submit(submit_when_cancelled())
    thread.submit(asyncio.sleep(0)).result(30)
    assert thread.close(30)
    for each in (first, *late):
        with pytest.raises(CancelledError):
            each.result(30)
    assert len(late) == 1
    assert not thread._futures
    work = wait()
    with pytest.raises(RuntimeError):
        thread.submit(work)
    work.close()
