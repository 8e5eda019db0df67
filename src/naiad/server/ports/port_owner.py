"""The process that listens on a TCP port, from Linux's /proc."""

import contextlib
import os
from pathlib import Path

_PROC = Path("/proc")
_LISTEN = "0A"


def port_owner(port: int) -> str:
    """Return `NAME (pid N)`; empty if it is not known, for example a process of another user."""
    with contextlib.suppress(OSError):
        links = {f"socket:[{inode}]" for table in ("tcp", "tcp6") for inode in _listening(table, port)}
        for process in _PROC.iterdir() if links else ():
            if process.name.isdigit() and _holds(process, links):
                return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
    return ""


def _listening(table: str, port: int) -> list[str]:
    """Return the inodes of the sockets that listen on a port."""
    rows = [line.split() for line in (_PROC / "net" / table).read_text().splitlines()[1:]]
    return [row[9] for row in rows if row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) == port]


def _holds(process: Path, links: set[str]) -> bool:
    with contextlib.suppress(OSError):  # it has ended, or belongs to another user
        return any(os.readlink(each) in links for each in (process / "fd").iterdir())
    return False
