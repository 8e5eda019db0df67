"""One deliberate defect: a source text and what replaces it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_REMEDY = "change `file` or `text` in mutants/catalogue.py with the source, so that the text occurs once"


class StaleMutantError(Exception):
    """The source or a test that a mutant names is not there any more."""


@dataclass(frozen=True)
class Mutant:
    """A defect, and the tests that are expected to notice it."""

    name: str
    file: str
    """Path of the source below the root of the repository."""
    text: str
    """Exact source text; occurs once in the file."""
    replacement: str
    tests: Sequence[str]
    """Arguments of pytest: files or folders below `tests`, or single tests of a file. Under 60 s together."""
    harm: str
    """What the defect would do to a server, in one line."""

    def mutated(self, root: Path) -> str:
        """Return the source with the defect. Raises StaleMutantError unless the text occurs exactly once."""
        path = root / self.file
        if not path.is_file():
            raise StaleMutantError(f"{self.name}: there is no {self.file}; {_REMEDY}")
        source = path.read_text(encoding="utf-8")
        count = source.count(self.text)
        if count != 1:
            raise StaleMutantError(f"{self.name}: {self.text!r} occurs {count} times in {self.file}; {_REMEDY}")
        return source.replace(self.text, self.replacement)

    def check(self, root: Path) -> None:
        """Raise StaleMutantError when the source, or a test, is not what the mutant expects."""
        compile(self.mutated(root), self.file, "exec")
        for test in self.tests:
            file, *names = test.split("::")
            path = root / "tests" / file
            if not path.exists():
                raise StaleMutantError(f"{self.name}: there is no tests/{file}; name the test that took its place")
            for name in names:
                source = path.read_text(encoding="utf-8")
                if f"def {name}(" not in source and f"class {name}" not in source:
                    raise StaleMutantError(f"{self.name}: there is no {name} in tests/{file}; correct its name")
