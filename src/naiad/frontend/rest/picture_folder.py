"""Files that requests name: those below one folder, which the owner of the model has named."""

import os
import stat
from pathlib import Path

from naiad.core.errors import InferError, excerpt, invalid_argument
from naiad.protocol.pictures import MAX_FILE_BYTES


class PictureFolder:
    """Reads files below a folder, for threads."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def read(self, path: str) -> bytes:
        """Return a file's content.

        Raises InferError(INVALID_ARG), with one text for a file outside and for one that does not exist, so that
        clients do not learn what else the server has.
        """
        try:
            folder = self._folder.resolve(strict=True)
            file = (folder / path).resolve(strict=True)  # follows links: their targets count
            if not file.is_relative_to(folder):
                raise self._refused(path)
            descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            with open(descriptor, "rb") as stream:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    raise self._refused(path)
                if status.st_size > MAX_FILE_BYTES:
                    raise invalid_argument(
                        f"path '{excerpt(path)}': the file has {status.st_size} bytes; at most {MAX_FILE_BYTES} are "
                        "read"
                    )
                return stream.read(MAX_FILE_BYTES + 1)
        except (OSError, ValueError, RuntimeError):
            raise self._refused(path) from None

    def _refused(self, path: str) -> InferError:
        return invalid_argument(f"path '{excerpt(path)}': no such file below the folder of the model's pictures")
