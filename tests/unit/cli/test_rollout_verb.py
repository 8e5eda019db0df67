"""The verb `naiad rollout`: its flags, and the text that it prints."""

from typing import Any

import pytest

from naiad.cli import rollout

SIDE = {
    "version": 1,
    "percent": 90.0,
    "requests": 90,
    "errors": 1,
    "error_rate": 1 / 90,
    "p50_ms": 1.5,
    "p99_ms": 3.25,
}
FOUND: dict[str, Any] = {
    "model": "m",
    "rollout": {
        "stable": 1,
        "canary": 2,
        "weight": 10.0,
        "sticky": "user",
        "shadow": 5.0,
        "guard": {"min_requests": 200, "max_error_rate": 0.01},
    },
    "note": "declared",
    "age_s": 12.3,
    "previous": None,
    "step": 1,
    "weights_left": [50.0, 100.0],
    "stable": SIDE,
    "canary": {**SIDE, "version": 2, "percent": 10.0, "p50_ms": None, "p99_ms": None},
    "shadow": {"equal": 4, "different": 1, "failed": 0, "skipped": 2},
}


def change(*flags: str) -> dict[str, Any]:
    return rollout.read_change(rollout.make_parser().parse_args(["m", *flags]))


@pytest.mark.parametrize(
    ("flags", "fields"),
    [
        ((), {}),
        (("--canary", "2", "--weight", "10"), {"canary": 2, "weight": 10.0}),
        (("--to", "2"), {"to": 2}),
        (("--allow", "2"), {"allow": [2]}),
        (("--allow", "2,3", "--to", "2", "-u", "host:1"), {"allow": [2, 3], "to": 2}),
        (("--allow", "2", "--canary", "2", "--weight", "10"), {"allow": [2], "canary": 2, "weight": 10.0}),
        (("--promote",), {"action": "promote"}),
        (("--rollback",), {"action": "rollback"}),
        (("--shadow", "20", "--sticky", "user"), {"shadow": 20.0, "sticky": "user"}),
        (("--steps", "5,50,100", "--every", "60"), {"steps": {"weights": [5.0, 50.0, 100.0], "every_s": 60.0}}),
        (
            ("--max-error-rate", "0.01", "--min-requests", "50"),
            {"guard": {"max_error_rate": 0.01, "min_requests": 50}},
        ),
    ],
)
def test_flags_become_fields(flags: tuple[str, ...], fields: dict[str, Any]) -> None:
    assert change(*flags) == fields


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--promote", "--rollback"), "--promote and --rollback exclude each other"),
        (("--to", "2", "--weight", "3"), "--to and --weight exclude each other"),
        (("--end", "--allow", "3"), "--end and --allow exclude each other"),
        (("--steps", "5,10"), "--steps and --every belong together"),
    ],
)
def test_contradictions_are_refused(flags: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert rollout.run(["m", *flags]) == 2
    assert words in capsys.readouterr().err


def test_text_has_shares_figures_and_next_commands() -> None:
    lines = rollout.format_rollout(FOUND).split("\n")
    assert lines[0] == (
        "m: 10 % of the requests go to version 2; by user; 5 % of the other ones are copied to it; "
        "step 1, next: 50 %, 100 %"
    )
    assert lines[3].split() == ["stable", "1", "90", "%", "90", "1", "1.11%", "1.50", "3.25"]
    assert lines[4].split() == ["canary", "2", "10", "%", "90", "1", "1.11%", "-", "-"]
    assert "shadow copies: 4 equal, 1 different, 0 failed, 2 skipped" in lines
    assert "guard: min_requests 200, max_error_rate 0.01" in lines
    assert lines[-1].startswith("next: naiad rollout m --promote")


def test_text_names_refused_versions_and_the_remedy() -> None:
    for found in (FOUND, {**FOUND, "rollout": None}):
        text = rollout.format_rollout({**found, "refused": {"2": "rolled back by a client"}})
        assert "version 2 is refused (rolled back by a client); naiad rollout m --allow 2" in text


def test_text_says_what_a_restart_would_forget() -> None:
    for found in (FOUND, {**FOUND, "rollout": None}):
        assert "NOT STORED" not in rollout.format_rollout({**found, "unstored": ""})
        text = rollout.format_rollout({**found, "unstored": "No space left on device"})
        assert "NOT STORED, a restart would return to the state before: No space left on device" in text


def test_text_says_what_other_servers_do_not_follow() -> None:
    text = rollout.format_rollout({**FOUND, "unshared": "access is denied"})
    assert "STORED BY THIS SERVER ALONE, other servers do not follow: access is denied" in text


def test_text_of_a_switch_names_the_way_back() -> None:
    found = {**FOUND, "rollout": {"stable": 2, "shadow": 0.0}, "previous": 1}
    del found["canary"], found["shadow"]
    text = rollout.format_rollout(found)
    assert text.startswith("m: version 2 serves all requests")
    assert text.endswith("next: naiad rollout m --rollback returns to version 1")
    assert "naiad rollout m --canary VERSION" in rollout.format_rollout({**found, "previous": None})


def test_missing_server_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert rollout.run(["m", "--url", "http://127.0.0.1:1"]) == 1
    assert "no response from a server" in capsys.readouterr().err


@pytest.mark.parametrize("answer", [{}, {"rollout": None}, {"model": "m", "rollout": [1]}, {"name": "m"}])
@pytest.mark.parametrize("flags", [(), ("--promote",), ("--json",), ("--end",)])
def test_answers_of_other_programs_are_errors(
    answer: dict[str, Any],
    flags: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(rollout, "ask", lambda *arguments, **options: answer)
    assert rollout.run(["m", *flags]) == 1
    assert "the answer is not one of this version of naiad" in capsys.readouterr().err


def test_an_end_says_what_a_restart_would_forget(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {**FOUND, "rollout": None, "unstored": "No space left on device"}
    monkeypatch.setattr(rollout, "ask", lambda *arguments, **options: found)
    assert rollout.run(["m", "--end"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("the rollout of m has ended")
    assert "NOT STORED, a restart would return to the state before: No space left on device" in out
