"""Each mutant fits the source as it is now; `make mutants` runs them."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from mutants.catalogue import MUTANTS
from mutants.mutant import Mutant, StaleMutantError

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_not_stale(mutant: Mutant) -> None:
    mutant.check(ROOT)


def test_every_room_has_two_mutants() -> None:
    """A test of a room that notices nothing shows when the room is broken."""
    counts = Counter(Path(mutant.file).parts[2] for mutant in MUTANTS)
    rooms = {path.parent.name for path in (ROOT / "src" / "naiad").glob("*/__init__.py")}
    assert {room: counts[room] for room in rooms if counts[room] < 2} == {}


def test_names_are_unique_and_mutants_many() -> None:
    assert len(MUTANTS) >= 60
    assert Counter(mutant.name for mutant in MUTANTS).most_common(1)[0][1] == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"file": "src/naiad/nothing.py"}, "there is no src/naiad/nothing.py"),
        ({"text": "no such text"}, "'no such text' occurs 0 times in"),
        ({"text": "return"}, "so that the text occurs once"),
        ({"tests": ("unit/nothing.py",)}, "there is no tests/unit/nothing.py"),
        ({"tests": ("contract/test_mutants.py::test_nothing_at_all",)}, "there is no test_nothing_at_all in"),
    ],
)
def test_stale_mutant_is_an_error(changes: dict[str, str], message: str) -> None:
    stale = replace(MUTANTS[0], **changes)  # type: ignore[arg-type]  # of the right types
    with pytest.raises(StaleMutantError, match=message):
        stale.check(ROOT)
