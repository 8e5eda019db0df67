"""Turns of the planner over simulated rows: arrivals, lengths, cancellations and slow clients in any order."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from naiad.backend.onnx_decoder.turns import TurnPlanner

PROMPT_TOKENS = 16


@dataclass(eq=False)
class SimulatedRow:
    prompt: int
    wanted: int
    length: int = 0
    made: int = 0
    is_waiting: bool = False

    @property
    def prompt_left(self):
        return max(0, self.prompt - self.length)

    @property
    def is_over(self):
        return self.made >= self.wanted


def carry_out(turn):
    for row in turn.rows:
        if turn.prompt_tokens:
            row.length += min(row.prompt_left, turn.prompt_tokens)
            row.made += not row.prompt_left
        else:
            row.length += 1
            row.made += 1


events = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.integers(1, 40), st.integers(1, 6)),
        st.tuples(st.just("cancel"), st.integers(0, 7)),
        st.tuples(st.just("pause"), st.integers(0, 7)),
        st.tuples(st.just("turn")),
    ),
    max_size=60,
)


class Simulation:
    """Rows and their planner; every turn is checked."""

    def __init__(self, can_pad):
        self.planner = TurnPlanner(PROMPT_TOKENS, can_pad=can_pad)
        self.can_pad = can_pad
        self.rows = []

    def take_turn(self):
        turn = self.planner.next(self.rows)
        assert (turn is None) == all(row.is_waiting for row in self.rows)
        if turn is None:
            return
        assert turn.rows
        assert not any(row.is_waiting for row in turn.rows)
        self.check_prompts(turn) if turn.prompt_tokens else self.check_decoding(turn)
        carry_out(turn)
        self.rows = [row for row in self.rows if not row.is_over]

    def check_decoding(self, turn):
        assert not any(row.prompt_left for row in turn.rows)
        assert self.can_pad or len({row.length for row in turn.rows}) == 1

    def check_prompts(self, turn):
        assert turn.prompt_tokens * len(turn.rows) <= PROMPT_TOKENS
        if len(turn.rows) > 1:
            assert all(0 < row.prompt_left <= turn.prompt_tokens and not row.length for row in turn.rows)
            assert self.can_pad or len({row.prompt_left for row in turn.rows}) == 1

    def happen(self, name, *values):
        if name == "arrive":
            self.rows.append(SimulatedRow(*values))
        elif name == "turn":
            self.take_turn()
        elif values[0] < len(self.rows) and name == "cancel":
            del self.rows[values[0]]
        elif values[0] < len(self.rows):
            self.rows[values[0]].is_waiting ^= True


@given(events=events, can_pad=st.booleans())
def test_every_row_ends_and_turns_are_valid(events, can_pad):
    simulation = Simulation(can_pad)
    for event in events:
        simulation.happen(*event)
    for row in simulation.rows:
        row.is_waiting = False
    for _ in range(sum(row.prompt + row.wanted for row in simulation.rows)):
        simulation.take_turn()
    assert not simulation.rows


def test_long_prompt_does_not_stop_other_rows():
    planner = TurnPlanner(PROMPT_TOKENS, can_pad=True)
    talking, long = SimulatedRow(4, 100, length=4, made=1), SimulatedRow(64, 1)
    rows = [talking, long]
    for _ in range(8):
        carry_out(planner.next(rows))
    assert (talking.made, long.prompt_left) == (5, 0)


def test_prompts_of_similar_lengths_share_a_turn():
    planner = TurnPlanner(512, can_pad=True)
    similar = [SimulatedRow(length, 1) for length in (100, 90, 110)]
    assert planner.next([*similar, SimulatedRow(5, 1)]).rows == similar


def test_groups_of_equal_length_take_turns():
    planner = TurnPlanner(PROMPT_TOKENS, can_pad=False)
    rows = [SimulatedRow(length, 50, length=length) for length in (3, 3, 8, 20)]
    for _ in range(30):
        carry_out(planner.next(rows))
    assert min(row.made for row in rows) >= 9
