"""The check `.ci/words` passes for the texts of the project, and reports a banned word with its place."""

import subprocess
import sys
from pathlib import Path

CHECK = Path(__file__).parents[2] / ".ci" / "words"


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(CHECK), *arguments], capture_output=True, text=True, check=False)


def test_documentation_has_no_banned_words() -> None:
    done = check()
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_banned_word_is_reported_with_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\nThe client is told.\n")
    done = check(str(page))
    assert "page.md:3: 'told'; write instead: gets" in done.stdout
    assert done.returncode == 1


def test_code_in_markdown_is_skipped(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Run `who`:\n\n```sh\nwho\n```\n")
    assert check(str(page)).returncode == 0


def test_comments_in_python_are_checked(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("limit = 5  # nobody waits longer\n")
    assert check(str(tmp_path)).returncode == 1


def test_missing_file_is_an_error() -> None:
    done = check("no_such_page.md")
    assert "no_such_page.md: no such file or directory" in done.stderr
