import pytest

from naiad.cli.main import main
from naiad.options.network.access_options import digest_of, parse_api_keys


def test_new_key_matches_printed_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key", "new", "ci", "inference,metrics"]) == 0
    shown = capsys.readouterr()
    (key,) = parse_api_keys(shown.out).keys
    secret = shown.err.split()[-1]
    assert (key.name, key.categories) == ("ci", {"inference", "metrics"})
    assert key.digest == digest_of(secret)
    assert secret not in shown.out


def test_every_key_is_another(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert main(["key", "new", "ci"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.split()[:2] == second.split()[:2]
    assert first.split()[2] != second.split()[2]


@pytest.mark.parametrize("arguments", [["two words"], ["#x"], ["ci", "infer"], [""]])
def test_wrong_names_and_categories_are_rejected(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key", "new", *arguments]) == 2
    assert "naiad key new:" in capsys.readouterr().err
