"""The verb `naiad explain`: answers that are none."""

import pytest

from naiad.cli.explain import explain


@pytest.mark.parametrize("answer", [{}, {"name": "m"}, {"name": "m", "version": "1", "scheduler": "x", "rules": 3}])
@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_answers_of_other_programs_are_errors(answer, flags, monkeypatch, capsys):
    monkeypatch.setattr(explain, "ask", lambda *arguments: answer)
    assert explain.run(["m", *flags]) == 1
    assert "the answer is not one of this version of naiad" in capsys.readouterr().err
