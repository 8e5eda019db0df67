"""Directories whose files this server runs or trusts: what another user has put there is not used.

A cache in a place that all users can write, such as the temporary directory, may have been made by any of them, with
models or environments in it that the server would run.
"""

import errno
import os
import stat
from pathlib import Path

_ROOT = 0


def make_private_folder(path: Path) -> None:
    """Make a directory, and those above it, or check the one that is there; then only this user and its groups write.

    Raises OSError; PermissionError, with the owner, for one of another user than this one and root.
    """
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    # A link of the operator may lead to another disk; one of another user may lead anywhere.
    for status in (os.lstat(path), os.stat(path)):
        if status.st_uid not in (_ROOT, os.geteuid()):
            reason = f"it belongs to user {status.st_uid}: its contents cannot be trusted"
            raise PermissionError(errno.EPERM, reason, str(path))
    # A directory of root that all may write, such as a volume of a pod, is as the operator wants it.
    if status.st_mode & stat.S_IWOTH and os.geteuid() in (_ROOT, status.st_uid):
        os.chmod(path, stat.S_IMODE(status.st_mode) & ~stat.S_IWOTH)
