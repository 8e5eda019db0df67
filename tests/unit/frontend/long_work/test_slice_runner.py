"""Turns of large requests: fairness, limits, disconnects, errors; with the test's own loop and clock."""

import gc
import weakref

import pytest

from naiad.core.errors import ErrorCode, InferError, invalid_argument
from naiad.frontend.long_work.slice_runner import SliceRunner


class Scene:
    """A runner whose clock advances by a millisecond per slice, and the results of its jobs."""

    def __init__(self, **limits):
        self.now_ns = 0
        self.soon = []
        self.steps = []
        self.results = []
        self.errors = []
        self.runner = SliceRunner(self.soon.append, clock_ns=lambda: self.now_ns, **limits)

    def work(self, name, count, error=None):
        for _ in range(count):
            self.now_ns += 1_000_000
            self.steps.append(name)
            yield
        if error is not None:
            raise error
        return name

    def run(self, client, name, count, size=10, error=None):
        return self.runner.run(client, self.work(name, count, error), size, self.results.append, self.errors.append)

    def turn(self):
        """Run one iteration of the loop, with at most one turn."""
        callbacks, self.soon[:] = list(self.soon), []
        assert len(callbacks) <= 1
        for callback in callbacks:
            callback()

    def finish(self):
        while self.soon:
            self.turn()

    @property
    def is_empty(self):
        runner = self.runner
        return (runner.job_count, runner.waiting_bytes, len(runner._jobs), len(runner._clients)) == (0, 0, 0, 0)


def test_short_work_is_done_at_once():
    scene = Scene()
    assert scene.run("a", "short", 1).is_over
    assert scene.results == ["short"]
    assert not scene.soon
    assert scene.is_empty


def test_without_a_loop_all_is_done():
    results = []
    runner = SliceRunner()
    runner.run("a", Scene().work("long", 50), 10, results.append, results.append)
    assert results == ["long"]


def test_a_turn_takes_two_milliseconds():
    scene = Scene()
    job = scene.run("a", "long", 7)
    seen = [len(scene.steps)]
    while scene.soon:
        scene.turn()
        seen.append(len(scene.steps))
    assert seen == [2, 4, 6, 7]
    assert job.is_over
    assert scene.results == ["long"]
    assert scene.is_empty


def test_connections_alternate_independent_of_load():
    scene = Scene()
    for number in range(5):
        scene.run("greedy", f"g{number}", 20)
    scene.run("modest", "m", 8)
    scene.steps.clear()
    while "m" not in scene.results:
        scene.turn()
    greedy = sum(step.startswith("g") for step in scene.steps)
    assert abs(greedy - scene.steps.count("m")) <= 2
    scene.finish()
    assert scene.results == ["m", "g0", "g1", "g2", "g3", "g4"]
    assert scene.is_empty


def test_second_job_of_a_connection_waits():
    scene = Scene()
    scene.run("a", "first", 6)
    scene.run("a", "short", 0)
    assert scene.results == []
    scene.finish()
    assert scene.results == ["first", "short"]


@pytest.mark.parametrize(("limits", "count"), [({"max_jobs": 2}, 2), ({"max_bytes": 30}, 3)])
def test_beyond_its_limits_jobs_are_rejected(limits, count):
    scene = Scene(**limits)
    jobs = [scene.run(number, f"j{number}", 6) for number in range(count)]
    rejected = scene.run("late", "late", 6)
    assert rejected.is_over
    assert [error.code for error in scene.errors] == [ErrorCode.UNAVAILABLE]
    assert scene.runner.job_count == count
    assert scene.runner.waiting_bytes == 10 * count
    scene.finish()
    assert all(job.is_over for job in jobs)
    assert "late" not in scene.results
    assert not scene.run("late", "late", 6).is_over


def test_a_job_above_all_bytes_runs_alone():
    scene = Scene(max_bytes=30)
    scene.run("a", "huge", 6, size=100)
    scene.run("b", "small", 6, size=1)
    assert len(scene.errors) == 1
    scene.finish()
    assert scene.results == ["huge"]
    assert scene.is_empty


def test_cancelled_job_calls_nothing():
    scene = Scene()
    job, other = scene.run("a", "gone", 6), scene.run("b", "other", 6)
    scene.runner.cancel(job)
    scene.runner.cancel(job)
    steps = scene.steps.count("gone")
    scene.finish()
    assert scene.steps.count("gone") == steps
    assert job.slices.gi_frame is None
    assert scene.results == ["other"]
    assert scene.errors == []
    scene.runner.cancel(other)
    assert scene.is_empty


def test_job_that_waits_is_cancelled():
    scene = Scene()
    scene.run("a", "first", 6)
    waiting = scene.run("a", "waiting", 6)
    scene.runner.cancel(waiting)
    scene.finish()
    assert scene.results == ["first"]
    assert scene.is_empty


@pytest.mark.parametrize("count", [0, 6])
@pytest.mark.parametrize(
    ("error", "code"), [(invalid_argument("wrong"), ErrorCode.INVALID_ARG), (ZeroDivisionError(), ErrorCode.INTERNAL)]
)
def test_errors_reach_the_client(count, error, code):
    scene = Scene()
    job = scene.run("a", "bad", count, error=error)
    scene.finish()
    assert job.is_over
    assert scene.results == []
    assert [each.code for each in scene.errors] == [code]
    assert isinstance(scene.errors[0], InferError)
    assert scene.errors[0].__traceback__ is None
    assert scene.is_empty


def test_callback_that_raises_stops_no_turns():
    scene = Scene()

    def broken(result):
        raise ZeroDivisionError

    scene.runner.run("a", scene.work("a", 6), 10, broken, scene.errors.append)
    scene.run("b", "b", 10)
    scene.finish()
    assert scene.results == ["b"]
    assert [each.code for each in scene.errors] == [ErrorCode.INTERNAL]  # its client does not wait forever
    assert scene.is_empty


def test_error_callback_that_raises_stops_no_turns():
    scene = Scene()

    def broken(result):
        raise ZeroDivisionError

    scene.runner.run("a", scene.work("a", 6, invalid_argument("wrong")), 10, scene.results.append, broken)
    scene.run("b", "b", 10)
    scene.finish()
    assert scene.results == ["b"]
    assert scene.is_empty


def test_nothing_is_kept_after_the_end():
    class Client:
        pass

    scene = Scene()
    client = Client()
    seen = weakref.ref(client)
    gc.collect()
    gc.disable()
    try:
        scene.run(client, "done", 6)
        scene.run(client, "bad", 6, error=invalid_argument("wrong"))
        scene.finish()
        scene.errors.clear()
        del client
        assert seen() is None
    finally:
        gc.enable()


class Shared(Scene):
    """A runner of a server that also answers other requests; its pauses are kept."""

    def __init__(self):
        self.responses = 0
        self.pauses = []
        super().__init__(call_later=self.later, response_count=lambda: self.responses)

    def later(self, delay_s, callback):
        self.pauses.append((delay_s, callback))

    def wake(self):
        """Run the turn after a pause, and return its length."""
        (delay_s, callback) = self.pauses.pop()
        self.now_ns += int(delay_s * 1e9)
        callback()
        return delay_s


def test_beside_other_requests_slices_have_pauses():
    scene = Shared()
    scene.responses = 1
    scene.run("a", "long", 3)
    assert scene.steps == [], "not even the first slice delays them"
    scene.turn()
    assert len(scene.steps) == 1
    assert not scene.soon
    assert scene.wake() == 0.002
    assert len(scene.steps) == 2
    scene.wake()
    scene.wake()
    assert scene.results == ["long"]
    assert scene.is_empty
    assert not scene.pauses


def test_responses_of_large_requests_make_no_pause():
    scene = Shared()
    for client in "abc":
        scene.run(client, client, 5)
    while scene.soon:
        scene.turn()
        scene.responses = len(scene.results)
    assert sorted(scene.results) == ["a", "b", "c"]
    assert not scene.pauses
    scene.run("a", "encode", 5)
    scene.runner.run("a", scene.work("part", 5), 10, scene.results.append, scene.errors.append, is_part=True)
    scene.finish()
    scene.responses += 1
    scene.run("a", "again", 5)
    assert scene.soon
    assert not scene.pauses


def test_pauses_end_with_the_other_requests():
    scene = Shared()
    scene.responses = 1
    scene.run("a", "long", 60)
    scene.turn()
    while scene.pauses:
        scene.wake()
    assert 15 <= len(scene.steps) <= 20, "three milliseconds a slice, for fifty milliseconds"
    scene.finish()
    assert scene.results == ["long"]


def test_lost_responses_hide_other_requests_briefly():
    scene = Shared()
    for number in range(10):
        scene.run(number, "lost", 1)
    scene.now_ns += 2_000_000_000
    scene.run("a", "first", 1)
    scene.responses = 2  # of the first one, and of another request
    scene.run("a", "second", 3)
    assert "second" not in scene.steps
