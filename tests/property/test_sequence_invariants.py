"""The sequence batcher keeps its invariants for all sequences of events, with both strategies."""

import copy

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from naiad.core.errors import ErrorCode, InferError
from naiad.scheduler.sequence.strategies import DirectSequenceScheduler, OldestSequenceScheduler
from support.long_run import examples
from support.scheduling import MS, sequence_request

IDLE_NS = 10 * MS


class Story:
    """What the caller knows of one sequence."""

    def __init__(self, number, live, active_ns):
        self.number = number
        self.live = live
        """The scheduler's own notes, of which only the public ones are read."""
        self.active_ns = active_ns
        """When a request of it came or was over."""
        self.seated_ns = None
        self.place = None
        self.waiting = []
        self.open = []
        """Taken, and not yet over for the sequence."""
        self.has_ended = False

    @property
    def is_over(self):
        return self.has_ended and not self.waiting and not self.open


class SequenceMachine(RuleBasedStateMachine):
    """Some instances and a clock. A free instance looks when it is woken and when its sleep is over."""

    @initialize(
        is_direct=st.booleans(),
        instance_count=st.integers(1, 2),
        max_rows=st.integers(0, 3),
        candidates=st.integers(1, 3),
        delay_ns=st.sampled_from([0, 0, 2 * MS, 5 * MS]),
        utilization=st.sampled_from([0.0, 0.5, 1.0]),
        preferred=st.sets(st.integers(1, 3), max_size=2),
        is_decoupled=st.booleans(),
    )
    def start(self, is_direct, instance_count, max_rows, candidates, delay_ns, utilization, preferred, is_decoupled):
        shared = {
            "model_name": "m",
            "instance_count": instance_count,
            "max_batch_size": max_rows,
            "idle_ns": IDLE_NS,
            "delay_ns": delay_ns,
            "is_decoupled": is_decoupled,
        }
        self.max_rows = max(1, max_rows)
        if is_direct:
            self.scheduler = DirectSequenceScheduler(**shared, minimum_slot_utilization=utilization)
            self.slot_count = self.max_rows
        else:
            preferred = {size for size in preferred if size <= self.max_rows}
            self.scheduler = OldestSequenceScheduler(
                **shared, preferred_batch_sizes=preferred, max_candidate_sequences=candidates
            )
            self.slot_count = candidates
        self.is_direct = is_direct
        self.is_decoupled = is_decoupled
        self.delay_ns = delay_ns if utilization or not is_direct else 0
        self.minimum_ready = utilization * self.slot_count
        self.now_ns = 1
        self.is_stopped = False
        self.stories = []  # of sequences that are not over
        self.born_count = 0
        self.by_id = {}
        self.story_of = {}  # every request ever taken in
        self.gone = set()
        self.doomed = set()  # waited behind one that was cancelled
        self.running = [None] * instance_count  # the requests that an instance executes, None while it is free
        self.sleeping_until = [None] * instance_count  # while it is free: a time, or None for no limit

    # --- requests come ------------------------------------------------------------------------------------------

    @rule(
        correlation_id=st.integers(1, 5),
        starts=st.booleans(),
        ends=st.sampled_from([False, False, True]),
        shape=st.sampled_from("AAAB"),
        timeout_us=st.sampled_from([0, 0, 1000, 7000]),
    )
    def enqueue(self, correlation_id, starts, ends, shape, timeout_us):
        """A client sends something, mostly as it should."""
        self.send(correlation_id, starts or correlation_id not in self.by_id, ends, shape, timeout_us)

    @rule(data=st.data(), ends=st.sampled_from([False, False, True]), timeout_us=st.sampled_from([0, 0, 1000]))
    def go_on(self, data, ends, timeout_us):
        """A client sends the next request of a sequence that is alive."""
        if self.by_id:
            self.send(data.draw(st.sampled_from(sorted(self.by_id))), False, ends, "A", timeout_us)

    @rule(correlation_id=st.integers(1, 4))
    def forget_to_start(self, correlation_id):
        self.send(correlation_id, False, False, "A", 0)

    def send(self, correlation_id, starts, ends, shape, timeout_us):
        if self.is_stopped:
            return
        self.expire()
        story = self.by_id.get(correlation_id)
        request = sequence_request(
            correlation_id, start=starts, end=ends, at_ns=self.now_ns, shape=shape, timeout_us=timeout_us
        )
        free = self.free_places()
        try:
            wakes = self.scheduler.enqueue(request, self.now_ns)
        except InferError:
            assert story is None
            assert not starts
            return
        if story is None:
            assert starts, "a sequence began without START"
            story = self.open_story(request)
            assert story.place == (min(free) if free else None), "slots go by number first and instance second"
        assert request.sequence is story.live, "a request joined another sequence"
        story.active_ns = self.now_ns
        story.waiting.append(request)
        self.story_of[request] = story
        if ends:
            self.end_story(story)
        if wakes:
            self.wake()

    def free_places(self):
        taken = {story.place for story in self.stories}
        places = {(slot, instance) for slot in range(self.slot_count) for instance in range(len(self.running))}
        return places - taken

    def open_story(self, request):
        story = Story(self.born_count, request.sequence, self.now_ns)
        self.born_count += 1
        self.stories.append(story)
        self.by_id[request.header.sequence_id] = story
        self.seat(story)
        return story

    def seat(self, story):
        if story.place is None and not story.live.is_backlogged:
            story.place = (story.live.slot, story.live.instance)
            story.seated_ns = self.now_ns

    def end_story(self, story):
        story.has_ended = True
        self.by_id = {key: other for key, other in self.by_id.items() if other is not story}

    def leave(self, request):
        assert request not in self.gone, "a request left twice"
        assert request in self.story_of, "a request left that never came"
        self.gone.add(request)

    def close(self, request):
        story = self.story_of[request]
        story.open.remove(request)
        story.active_ns = self.now_ns

    # --- instances ----------------------------------------------------------------------------------------------

    def wake(self):
        for instance in sorted(self.scheduler.pop_woken()):
            if self.running[instance] is None:
                self.look(instance)

    def look(self, instance):
        """A free instance asks for a batch."""
        self.expire()
        batch = self.scheduler.take(self.now_ns, instance)
        if batch is None:
            wake_ns = self.scheduler.wake_ns(instance)
            assert wake_ns == 0 or wake_ns > self.now_ns, "an instance that has just looked would spin"
            self.sleeping_until[instance] = wake_ns or None
        else:
            self.check(batch, instance)
            self.running[instance] = list(batch.requests)
        self.wake()

    def check(self, batch, instance):
        requests = list(batch.requests)
        stories = [self.story_of[request] for request in requests]
        assert requests
        assert batch.size == (batch.slots[-1] + 1 if batch.slots else len(requests)) <= self.max_rows
        assert len({request.shape_key for request in requests}) == 1
        assert len(set(stories)) == len(stories), "two requests of a sequence in one batch"
        for request, story in zip(requests, stories, strict=True):
            self.seat(story)
            assert story.place is not None, "a sequence executes that holds no slot"
            assert story.place == (story.live.slot, instance), "a sequence changed its place"
            assert story.waiting[0] is request, "a sequence is not executed in order"
            assert not story.open, "two requests of a sequence execute at a time"
        if self.is_direct:
            for story in self.stories:
                self.seat(story)  # a sequence of another shape, too, that got a slot from the backlog
            assert list(batch.slots) == [story.place[0] for story in stories]
            assert list(batch.slots) == sorted(batch.slots)
            ready = [s for s in self.stories if s.place and s.place[1] == instance and s.waiting and not s.open]
            oldest_ns = min(story.waiting[0].arrival_ns for story in ready)
            assert len(ready) >= self.minimum_ready or self.now_ns >= oldest_ns + self.delay_ns
        for request, story in zip(requests, stories, strict=True):
            self.leave(request)
            story.waiting.pop(0)
            story.open.append(request)
        self.forget_the_over()

    @rule(data=st.data())
    def finish(self, data):
        """An instance has executed its batch and looks for the next."""
        busy = [instance for instance, requests in enumerate(self.running) if requests is not None]
        if busy:
            self.end_execution(data.draw(st.sampled_from(busy)))

    @precondition(lambda self: self.is_decoupled)
    @rule(data=st.data())
    def release(self, data):
        """The final response of a decoupled request comes, while its instance executes it or much later."""
        waiting_for_final = [request for request, story in self.story_of.items() if request in story.open]
        if waiting_for_final:
            request = data.draw(st.sampled_from(waiting_for_final))
            self.close(request)
            self.forget_the_over()
            self.scheduler.release(request, self.now_ns)
            self.wake()

    # --- time ---------------------------------------------------------------------------------------------------

    @rule(step_ns=st.sampled_from([1, MS, 4 * MS, IDLE_NS]))
    def pass_time(self, step_ns):
        """Time passes; instances wake when `wake_ns` says and a timer goes off when `expire_ns` says."""
        end_ns = self.now_ns + step_ns
        while True:
            due = [
                (until, instance)
                for instance, until in enumerate(self.sleeping_until)
                if self.running[instance] is None and until is not None and until <= end_ns
            ]
            expire_ns = self.scheduler.expire_ns()
            if expire_ns and expire_ns <= end_ns:
                due.append((expire_ns, -1))
            if not due:
                break
            until, instance = min(due)
            self.now_ns = max(self.now_ns, until)
            if instance >= 0:
                self.look(instance)
            else:
                self.expire()
                expire_ns = self.scheduler.expire_ns()
                assert expire_ns == 0 or expire_ns > self.now_ns, "a timer would spin"
                self.wake()
        self.now_ns = end_ns

    def expire(self):
        """Remove what is late, and compare the sequences that ended with those that should have."""
        late = {
            story
            for story in self.stories
            if story.place is None and any(self.deadline_of(request) <= self.now_ns for request in story.waiting)
        }
        for story in self.stories:
            self.seat(story)
        dropped = self.scheduler.expire(self.now_ns)
        for request, error in dropped:
            story = self.story_of[request]
            self.leave(request)
            if request in self.doomed:
                assert error.code is ErrorCode.CANCELLED
                self.doomed.remove(request)
                continue
            assert error.message == "timeout of the corresponding sequence has been expired"
            assert story in late, "a sequence timed out too early, or while it held a slot"
            story.waiting.remove(request)
            if not story.has_ended:
                self.end_story(story)
        for story in late:
            assert not story.waiting or not story.live.is_backlogged, "a sequence waits although its time is over"
        assert not self.doomed
        for story in list(self.by_id.values()):
            self.compare_idleness(story)
        self.forget_the_over()

    def deadline_of(self, request):
        """Triton: only the timeouts of requests that came while their sequence waited for a slot count."""
        timeout_us = request.header.timeout_us
        return request.arrival_ns + timeout_us * 1000 if timeout_us else float("inf")

    def compare_idleness(self, story):
        if story.live.has_ended:
            assert story.place is not None, "a sequence in the backlog became idle"
            assert not story.waiting, "a sequence became idle while a request of it waited"
            assert not story.open, "a sequence became idle while a request of it executed"
            assert self.now_ns >= story.active_ns + IDLE_NS, "a sequence became idle too early"
            self.end_story(story)
        elif story.place is not None and not story.waiting and not story.open:
            assert self.now_ns < max(story.active_ns, story.seated_ns) + IDLE_NS, "an idle sequence lives on"

    def forget_the_over(self):
        self.stories = [story for story in self.stories if not story.is_over]

    # --- removal ------------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def cancel(self, data):
        self.expire()
        waiting = [request for story in self.stories for request in story.waiting]
        if not waiting:
            return
        request = data.draw(st.sampled_from(waiting))
        story = self.story_of[request]
        position = story.waiting.index(request)
        behind = story.waiting[position + 1 :]
        assert self.scheduler.cancel(request)
        self.leave(request)
        self.doomed.update(behind)
        del story.waiting[position:]
        self.end_story(story)
        self.forget_the_over()
        self.expire()
        self.wake()
        assert not self.scheduler.cancel(request)

    @rule(data=st.data())
    def cancel_what_has_left(self, data):
        if self.gone:
            request = data.draw(st.sampled_from(sorted(self.gone, key=lambda gone: gone.arrival_ns)))
            assert not self.scheduler.cancel(request)

    @rule(instance=st.integers(0, 9))
    def lose_an_instance(self, instance):
        """An instance dies while it is free; requests of a decoupled model may still be open with it."""
        if instance >= len(self.running) or self.running[instance] is not None:
            return
        self.expire()
        lost = [story for story in self.stories if story.place and story.place[1] == instance]
        expected = {request for story in lost for request in story.waiting}
        drained = self.scheduler.drain_instance(instance)
        assert set(drained) == expected
        for request in drained:
            self.leave(request)
        for story in lost:
            story.waiting.clear()
            self.end_story(story)
        self.stories = [story for story in self.stories if story not in lost]
        self.wake()
        if self.running[instance] is None:
            self.look(instance)

    @rule(is_sure=st.integers(0, 9))
    def drain(self, is_sure):
        """The model stops; what executes goes on to its end."""
        if is_sure:
            return
        self.expire()
        drained = self.scheduler.drain()
        for request in drained:
            self.leave(request)
        assert set(drained) == {request for story in self.stories for request in story.waiting}
        for story in self.stories:
            story.waiting.clear()
        self.stories = []
        self.by_id = {}
        self.is_stopped = True

    # --- at any time --------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_forgotten(self):
        if hasattr(self, "scheduler"):
            assert self.scheduler.pending_count == sum(len(story.waiting) for story in self.stories)
            assert self.scheduler.live_sequence_count == len(self.stories)

    @invariant()
    def every_slot_has_one_sequence(self):
        if not hasattr(self, "scheduler"):
            return
        for story in self.stories:
            self.seat(story)
        seated = [story for story in self.stories if story.place is not None]
        backlog = [story for story in self.stories if story.place is None]
        assert len({story.place for story in seated}) == len(seated), "two sequences in one slot"
        assert len(seated) == min(len(self.stories), self.slot_count * len(self.running)), "a slot lies idle"
        if seated and backlog:
            assert max(s.number for s in seated) < min(s.number for s in backlog), "the backlog was overtaken"

    @invariant()
    def no_instance_sleeps_over_work(self):
        if not hasattr(self, "scheduler"):
            return
        for instance, requests in enumerate(self.running):
            until = self.sleeping_until[instance]
            if requests is None and (until is None or until > self.now_ns):
                # One whose sleep has an end wakes by itself, and a timer sees to the end of sequences.
                latest_ns = self.now_ns if until is not None else self.now_ns + 1000 * MS
                slept_through = copy.deepcopy(self.scheduler).take(latest_ns, instance)
                assert slept_through is None, "a batch could be sent and no instance was woken"

    def teardown(self):
        """Run to the end: every request that came has left, exactly once."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(1000):
            if all(requests is None for requests in self.running) and not self.stories:
                break
            for instance, requests in enumerate(self.running):
                if requests is not None:
                    self.end_execution(instance)
            for request, story in self.story_of.items():
                if self.is_decoupled and request in story.open:
                    self.close(request)
                    self.forget_the_over()
                    self.scheduler.release(request, self.now_ns)
                    self.wake()
            self.pass_time(MS)
        assert self.gone == set(self.story_of), "a request was never answered"
        assert self.scheduler.live_sequence_count == 0
        assert self.scheduler.expire_ns() == 0

    def end_execution(self, instance):
        for request in self.running[instance]:
            story = self.story_of[request]
            if not self.is_decoupled and request in story.open:
                self.close(request)
        self.forget_the_over()
        self.running[instance] = None
        self.look(instance)


TestSequences = SequenceMachine.TestCase
TestSequences.settings = settings(max_examples=examples(120), stateful_step_count=40, report_multiple_bugs=False)
