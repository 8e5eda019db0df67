"""The check `.ci/words` passes for the project, and reports a banned word with its place."""

import subprocess
import sys
from pathlib import Path

CHECK = Path(__file__).parents[2] / ".ci" / "words"


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(CHECK), *arguments], capture_output=True, text=True, check=False)


def test_project_has_no_banned_words() -> None:
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


def test_hidden_directory_is_skipped(tmp_path: Path) -> None:
    installed = tmp_path / ".peers" / "package.py"
    installed.parent.mkdir()
    installed.write_text("# nobody checks what a benchmark installs\n")
    assert check(str(tmp_path)).returncode == 0
    assert check(str(installed)).returncode == 1


def test_code_in_python_is_skipped(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("print(who.told)\n")
    assert check(str(module)).returncode == 0


def test_names_of_tests_are_checked(tmp_path: Path) -> None:
    module = tmp_path / "test_module.py"
    module.write_text("def test_client_is_told(): ...\ndef test_a_b_c_d_e_f_g_h_i(): ...\n")
    lines = check(str(module)).stdout.splitlines()
    assert "test_module.py:1: 'told'" in lines[0]
    assert "test_module.py:2: 'a b c d e f g h i' is too long" in lines[1]


def test_defined_names_are_checked_as_words(tmp_path: Path) -> None:
    module = tmp_path / "let_go.py"
    module.write_text("class OnNobody:\n    def f(self, told):\n        self.every_one = who = told\n")
    found = [line.split("; ")[0].rpartition("/")[2] for line in check(str(module)).stdout.splitlines()]
    assert found == ["let_go.py:1: 'let go'", "let_go.py:1: 'Nobody'", "let_go.py:2: 'told'", "let_go.py:3: 'who'"]


def test_missing_file_is_an_error() -> None:
    done = check("no_such_page.md")
    assert "no_such_page.md: no such file or directory" in done.stderr
