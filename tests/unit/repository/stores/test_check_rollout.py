"""`naiad check` and the loader read `rollout.toml` of a model's directory."""

from pathlib import Path

import pytest

from naiad.backend.registry import BackendRegistry
from naiad.core.errors import InferError
from naiad.engine.loading.load_configuration import read_rollout
from naiad.repository.model_check import ModelReport, check_path
from naiad.repository.stores.fingerprint import file_state, fingerprint
from naiad.repository.stores.store import entry_of_directory
from support.model_repository import write_scale

GOOD = "stable = 1\ncanary = 2\nweight = 10\n"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_scale(tmp_path, 1, version=1)
    write_scale(tmp_path, 2, version=2)
    return tmp_path / "scale"


def report_of(model: Path, text: str) -> ModelReport:
    (model / "rollout.toml").write_text(text)
    (report,) = check_path(model.parent, known_backends=BackendRegistry().names())
    return report


def test_versions_of_the_rollout_are_checked(model: Path) -> None:
    report = report_of(model, GOOD)
    assert report.is_ok
    assert list(report.versions) == [1, 2]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("stable = 1\nweigth = 3", 2, "did you mean 'weight'?"),
        ("stable = 7", 1, "stable is version 7, which has no directory"),
        ("stable = ", 1, "not TOML"),
    ],
)
def test_mistakes_are_errors_with_positions(model: Path, text: str, line: int, words: str) -> None:
    report = report_of(model, text)
    (problem,) = report.problems
    assert (problem.line, problem.is_error) == (line, True)
    assert words in problem.description


def test_missing_canary_is_a_warning(model: Path) -> None:
    report = report_of(model, "stable = 1\ncanary = 7")
    assert report.is_ok
    assert "canary is version 7" in report.problems[0].message


def test_shadow_of_a_decoupled_model_is_a_warning(model: Path) -> None:
    config = model / "config.pbtxt"
    config.write_text(config.read_text() + "model_transaction_policy { decoupled: true }")
    report = report_of(model, GOOD + "shadow = 5")
    assert report.is_ok
    assert "a decoupled model are not copied" in report.problems[0].message


def test_file_that_is_not_text_is_an_error(model: Path) -> None:
    (model / "rollout.toml").write_bytes(b"\xff\xfe")
    (report,) = check_path(model.parent, known_backends=BackendRegistry().names())
    assert "not UTF-8" in report.problems[0].message
    with pytest.raises(InferError, match="not UTF-8"):
        read_rollout(entry_of_directory("scale", model))


def test_loader_reports_all_mistakes(model: Path) -> None:
    (model / "rollout.toml").write_text("stable = 0\nweight = 200")
    with pytest.raises(InferError, match=r"(?s)stable is 0.*weight is 200") as caught:
        read_rollout(entry_of_directory("scale", model))
    assert "rollout.toml:2:1" in caught.value.message


def test_digest_follows_the_text(model: Path) -> None:
    digests = []
    for text in (GOOD, GOOD, GOOD + "sticky = 'user'"):
        (model / "rollout.toml").write_text(text)
        declared = read_rollout(entry_of_directory("scale", model))
        assert declared is not None
        digests.append(declared.digest)
    assert digests[0] == digests[1] != digests[2]


def test_changed_rollout_leaves_the_versions_unchanged(model: Path) -> None:
    entry = entry_of_directory("scale", model)
    before, seen = file_state(entry), fingerprint(entry)
    (model / "rollout.toml").write_text(GOOD)
    after = file_state(entry)
    assert after != before
    assert fingerprint(entry) != seen
    assert after.unchanged_versions(before) == {1, 2}
