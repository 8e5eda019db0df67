"""Wake-ups: no request waits while an instance sleeps that nothing has woken."""

from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.engine.serving.dispatch.dispatcher import Dispatcher
from naiad.engine.serving.dispatch.response_queue import ResponseQueue
from naiad.scheduler.factory import create_scheduler
from naiad.telemetry.statistics.model_statistics import ModelStatistics
from support.engine_parts import Answers, ScriptedInstance, StepLoop, config, request
from support.long_run import examples


class Sleeper:
    """The runner of an instance: notes that it was woken, and takes a batch when the test calls `take`."""

    def __init__(self, index):
        self.index = index
        self.instance = ScriptedInstance()
        self.free_ns = 0
        self.is_awake = True
        self.batch = None

    def start(self): ...

    def wake(self):
        assert not self.is_awake
        self.is_awake = True

    wake_now = wake

    def take(self, dispatcher):
        """Look for a batch, which uses up the wake-up."""
        self.is_awake = False
        self.batch, _ = dispatcher.take(self)

    def finish(self, dispatcher):
        batch, self.batch = self.batch, None
        batch.exec_start_ns = batch.compute_start_ns = batch.compute_end_ns = batch.exec_end_ns = 1
        dispatcher.note_executed(batch)


ACTIONS = st.lists(st.one_of(st.just("enqueue"), st.integers(0, 2)), max_size=40)


@given(
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from([{}, {"dynamic_batching": {}}, {"dynamic_batching": {"preferred_batch_size": [1]}}]),
    ACTIONS,
)
@settings(max_examples=examples(300))
def test_nothing_waits_while_all_idle_instances_sleep(instance_count, rows, fields, actions):
    made, loop = config(max_batch_size=rows, **fields), StepLoop()
    dispatcher = Dispatcher(
        config=made,
        scheduler=create_scheduler(made, instance_count=instance_count),
        statistics=ModelStatistics("m", "1"),
        response_queue=ResponseQueue(loop),
        loop=loop,
    )
    sleepers = [Sleeper(index) for index in range(instance_count)]
    dispatcher.runners.replace(sleepers)
    for sleeper in sleepers:
        sleeper.take(dispatcher)
    for action in actions:
        if action == "enqueue":
            dispatcher.enqueue(request(Answers()))
        else:
            sleeper = sleepers[action % instance_count]
            if sleeper.batch is not None:
                sleeper.finish(dispatcher)
                sleeper.take(dispatcher)
            elif sleeper.is_awake:
                sleeper.take(dispatcher)
        is_any_awake = any(sleeper.is_awake for sleeper in sleepers)
        assert not (dispatcher.has_pending() and dispatcher.runners.idle and not is_any_awake)
