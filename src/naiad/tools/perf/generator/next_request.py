"""The next request of a load: its model, its data, its place in a sequence."""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import count

from naiad.core.errors import invalid_argument
from naiad.tools.perf.generator.setup import Setup
from naiad.tools.perf.inputs.templates import TemplateSet
from naiad.tools.perf.load.sequences import SentSequence, SequenceSource
from naiad.tools.perf.perf_exchange import Prepared, RequestTemplate, RightAnswers, SentRequest
from naiad.tools.perf.perf_plan import Concurrency, Load, PeriodicConcurrency, Sequences

_MAX_PREPARED = 100_000


class _SequenceModel:
    """The live sequences of a model, by lane: a slot of a closed loop, or one of the sequences of an open loop."""

    def __init__(self, index: int, source: SequenceSource, settings: Sequences, parts: int) -> None:
        self.index = index
        self._source = source
        self._lanes: dict[int, SentSequence] = {}
        self._by_id: dict[int, SentSequence] = {}
        self._lane_count = max(1, settings.count // parts)
        self._is_serial = settings.are_serial
        self._turn = 0

    @property
    def capacity(self) -> int:
        """The number of sequences that can be live at once."""
        return self._source.capacity

    def in_lane(self, lane: int) -> SentSequence:
        """Return the sequence of a lane, a new one if all of the last has been sent."""
        sequence = self._lanes.get(lane)
        if sequence is None or sequence.is_sent:
            sequence = self._lanes[lane] = self._source.begin()
            self._by_id[sequence.sequence_id] = sequence
        return sequence

    def in_turn(self) -> SentSequence | None:
        """Return the next sequence of an open loop.

        None while all are busy that send a request at a time, or sequences in progress have all ids.
        """
        for _ in range(self._lane_count):
            lane = self._turn
            self._turn = (lane + 1) % self._lane_count
            sequence = self._lanes.get(lane)
            if self._is_serial and sequence is not None and sequence.outstanding:
                continue
            is_new = sequence is None or sequence.is_sent
            if not is_new or self._source.has_free_id:
                return self.in_lane(lane)
        return None

    def ended(self, exchange: SentRequest) -> bool:
        """Account for the end of a request; return whether its sequence is over, without a failure.

        A sequence whose first request failed does not exist on the server; one that failed later is ended with its
        next request, which frees what the server keeps for it.
        """
        sequence = self._by_id[exchange.sequence_id]
        sequence.outstanding -= 1
        if exchange.failure:
            sequence.has_failed = True
            if exchange.sequence_start:
                sequence.abandon()
            else:
                sequence.cut()
        is_over = sequence.is_sent and not sequence.outstanding
        if is_over:
            del self._by_id[exchange.sequence_id]
            self._source.release(sequence)
        return is_over and not sequence.has_failed

    def unfinished(self) -> list[SentSequence]:
        """Return the sequences that have begun and not ended, cut short: the next request of each is the last."""
        for sequence in self._by_id.values():
            sequence.cut()
        return [each for each in self._by_id.values() if not each.is_sent]


class Requests:
    """Makes the requests of one generator process."""

    def __init__(self, setup: Setup, prepare: Callable[[RequestTemplate], Prepared]) -> None:
        """`prepare` is the target's. Raises InferError(INVALID_ARG) for settings that are wrong."""
        self._inputs = [model.inputs for model in setup.models]
        self._prepare = prepare
        self._prepared = [
            [] if inputs.has_slots else [prepare(template) for template in inputs.templates]
            for inputs in self._inputs
        ]
        self._prepared_by_slot: dict[tuple[int, int, int], Prepared] = {}
        """By model, template and slot, for outputs in shared memory."""
        self._script = setup.script
        self._choose = model_chooser([model.weight for model in setup.models])
        self._numbers = [count(setup.part, setup.parts) for _ in setup.models]
        self._timing_share = setup.timing_share
        self._wants_body = [
            setup.keeps_bodies or (setup.validates and any(template.expected for template in inputs.templates))
            for inputs in self._inputs
        ]
        self._right_answers = [[_right_answers(inputs) for _ in inputs.templates] for inputs in self._inputs]
        """By model and template."""
        self._chance = random.Random(setup.seed * setup.parts + setup.part).random
        self._sequences = [_sequence_model(index, setup) for index in range(len(setup.models))]

    def check(self, load: Load, parts: int) -> None:
        """Raise InferError(INVALID_ARG) for more slots of a closed loop than there are sequence ids."""
        for sequences in self._sequences:
            if sequences is None or not isinstance(load, Concurrency | PeriodicConcurrency):
                continue
            ids = sequences.capacity * parts
            slots = load.value if isinstance(load, Concurrency) else load.end
            if slots > ids:
                raise invalid_argument(
                    f"concurrency {slots} needs as many live sequences, and there are {ids} sequence ids; "
                    "widen their range"
                )

    def in_slot(self, slot: int, exchange: SentRequest) -> Prepared:
        """Fill in the next request of a slot of a closed loop."""
        index = self._choose()
        sequences = self._sequences[index]
        if sequences is None:
            return self._fill(index, next(self._numbers[index]), exchange)
        return self._step(index, sequences.in_lane(slot), exchange)

    def in_turn(self, number: int, exchange: SentRequest) -> Prepared | None:
        """Fill in request `number` of an open loop; None if it has to wait for the request ahead in its sequence."""
        if self._script:
            return self._scripted(number, exchange)
        index = self._choose()
        sequences = self._sequences[index]
        if sequences is None:
            return self._fill(index, number if len(self._inputs) == 1 else next(self._numbers[index]), exchange)
        sequence = sequences.in_turn()
        return sequence and self._step(index, sequence, exchange)

    def ended(self, exchange: SentRequest) -> bool:
        """Account for the end of a request of a sequence; return whether the whole sequence was served with it."""
        sequences = self._sequences[exchange.model_index]
        return exchange.sequence_end if sequences is None else sequences.ended(exchange)

    def endings(self, on_end: Callable[[SentRequest], object]) -> Iterator[tuple[SentRequest, Prepared]]:
        """Return the requests that end the sequences which have begun."""
        for sequences in self._sequences:
            if sequences is None:
                continue
            for sequence in sequences.unfinished():
                exchange = SentRequest(on_end)
                yield exchange, self._step(sequences.index, sequence, exchange)

    def _scripted(self, number: int, exchange: SentRequest) -> Prepared:
        entry = self._script[number]
        exchange.sequence_id = entry.sequence_id
        exchange.sequence_start = entry.sequence_start
        exchange.sequence_end = entry.sequence_end
        return self._fill(entry.model_index, entry.template_index, exchange)

    def _step(self, index: int, sequence: SentSequence, exchange: SentRequest) -> Prepared:
        template, exchange.sequence_start, exchange.sequence_end = sequence.step()
        exchange.sequence_id = sequence.sequence_id
        return self._fill(index, template, exchange)

    def _fill(self, index: int, number: int, exchange: SentRequest) -> Prepared:
        prepared = self._prepared[index]
        template = number % len(self._inputs[index].templates)
        exchange.model_index = index
        exchange.template_index = template
        exchange.wants_body = self._wants_body[index]
        exchange.right_answers = self._right_answers[index][template]
        exchange.wants_timing = self._timing_share > 0 and self._chance() < self._timing_share
        return prepared[template] if prepared else self._of_slot(index, template, exchange.slot)

    def _of_slot(self, index: int, template: int, slot: int) -> Prepared:
        key = index, template, slot
        prepared = self._prepared_by_slot.get(key)
        if prepared is None:
            prepared = self._prepare(self._inputs[index].variant(template, slot))
            if len(self._prepared_by_slot) >= _MAX_PREPARED:
                self._prepared_by_slot.clear()
            self._prepared_by_slot[key] = prepared
        return prepared


def _right_answers(inputs: TemplateSet) -> RightAnswers:
    made = RightAnswers()
    if inputs.declared:
        made.models, made.is_single = inputs.declared.models, not inputs.declared.is_decoupled
    return made


def _sequence_model(index: int, setup: Setup) -> _SequenceModel | None:
    model = setup.models[index]
    if model.sequences is None:
        return None
    source = SequenceSource(
        model.sequences,
        model.inputs.streams,
        uses_stream_length=model.uses_stream_length,
        part=setup.part,
        parts=setup.parts,
    )
    return _SequenceModel(index, source, model.sequences, setup.parts)


def model_chooser(weights: Sequence[float]) -> Callable[[], int]:
    """Return a function that returns the index of the next model, in proportion to the weights.

    The choice is the smooth weighted round robin of nginx: exact over the long run and evenly spread.

    Raises InferError(INVALID_ARG) unless each weight is over 0.
    """
    for index, weight in enumerate(weights):
        if not 0 < weight < float("inf"):
            raise invalid_argument(f"the weight of model {index} is {weight:g}; expected more than 0")
    if len(weights) == 1:
        return lambda: 0
    total = sum(weights)
    credit = [0.0] * len(weights)

    def choose() -> int:
        for index, weight in enumerate(weights):
            credit[index] += weight
        chosen = max(range(len(credit)), key=credit.__getitem__)
        credit[chosen] -= total
        return chosen

    return choose
