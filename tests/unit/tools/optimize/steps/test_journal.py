import json

import numpy as np
import pytest

from naiad.files.json_records import read_record, to_json
from naiad.tools.measure.result import Interval
from naiad.tools.optimize.results.candidate_measurement import Profile, Runtime
from naiad.tools.optimize.results.verdict import Difference, Verdict
from naiad.tools.optimize.steps.step_journal import StepJournal, key_of

PROFILE = Profile(Runtime("threads-1", {"threads": "1"}), Interval(9.0, 8.0, 10.0), Interval(5, 4, 6), 8, 0.5, 12.0)
DIFFERENCE = Difference("LOGITS", "values", 3, (0, 2), 1.5, float("nan"), 0.1, "output 'LOGITS' differs")


def read_profile(document):
    return read_record(Profile, document)


def test_finished_step_is_read_again(tmp_path):
    runs = []

    def run():
        runs.append(1)
        return PROFILE

    for expected in (False, True):
        assert StepJournal(tmp_path).step("profile", "k" * 64, run, read_profile) == (PROFILE, expected)
    assert len(runs) == 1


def test_fresh_journal_ignores_earlier_runs(tmp_path):
    StepJournal(tmp_path).write("profile", "k", PROFILE)
    journal = StepJournal(tmp_path, is_fresh=True)
    assert journal.read("profile", "k", read_profile) is None
    journal.write("profile", "k", PROFILE)
    assert journal.read("profile", "k", read_profile) == PROFILE


@pytest.mark.parametrize("text", ["", "{", "[]", '{"runtime": 1}', '{"unknown": 1}'])
def test_damaged_file_counts_as_not_run(tmp_path, text):
    (tmp_path / "profile-k.json").write_text(text)
    assert StepJournal(tmp_path).read("profile", "k", read_profile) is None


def test_verdict_survives_its_json():
    verdict = Verdict(False, [DIFFERENCE], {"LOGITS": 0.5}, samples=4)
    found = read_record(Verdict, json.loads(to_json(verdict)))
    assert found.failures[0].index == (0, 2)
    assert np.isnan(found.failures[0].found)
    assert found.worst_absolute == {"LOGITS": 0.5}


def test_key_depends_on_every_part():
    keys = {key_of("a", 1), key_of("a", 2), key_of("b", 1), key_of("a", PROFILE), key_of(np.arange(2))}
    assert len(keys) == 5
