"""naiad with one module edited: what a change of that module alone does, in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

from support.server_process import SOURCE

_END_S = 240.0


class EditedSource:
    """A folder with naiad's source, links to it except for one file."""

    def __init__(self, folder: Path, module: str, before: str, inserted: str) -> None:
        """Insert text in front of what occurs once in a module: `config/backends.py`."""
        self.folder = folder
        text = (SOURCE / "naiad" / module).read_text(encoding="utf-8")
        assert text.count(before) == 1, f"{module} has {before!r} {text.count(before)} times"
        self._link(folder / "naiad", SOURCE / "naiad", module.split("/"))
        (folder / "naiad" / module).write_text(text.replace(before, inserted + before), encoding="utf-8")
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(SOURCE)])}

    def _link(self, folder: Path, source: Path, path: list[str]) -> None:
        folder.mkdir(parents=True)
        for each in source.iterdir():
            if each.name == path[0] and path[1:]:
                self._link(folder / each.name, each, path[1:])
            elif each.name not in (path[0], "__pycache__"):
                (folder / each.name).symlink_to(each)

    def run(self, *arguments: object) -> str:
        """Run a command of naiad to its end in the folder; return its standard output. It must succeed."""
        done = subprocess.run(
            [sys.executable, "-m", "naiad", *map(str, arguments)],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=_END_S,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout
