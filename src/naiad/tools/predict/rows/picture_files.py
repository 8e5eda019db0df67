"""Files of pictures that rows name."""

from naiad.core.errors import excerpt, invalid_argument
from naiad.protocol.pictures import MAX_FILE_BYTES
from naiad.tools.predict.rows.outage import is_outage_of_file
from naiad.tools.predict.stores.object_path import FolderPath, ObjectFolder


class PictureFiles:
    """Reads files whose names are relative to one folder, with the rights of the process."""

    def __init__(self, folder: FolderPath) -> None:
        self._folder = folder

    def read(self, name: str) -> bytes:
        """Return a file's content.

        Raises InferError(INVALID_ARG) for one that cannot be read or is too large, OSError for one that cannot be
        read now.
        """
        if isinstance(self._folder, ObjectFolder):
            return self._folder.read(name, MAX_FILE_BYTES)
        path = self._folder / name
        try:
            if not path.is_file():
                raise invalid_argument(f"{excerpt(str(path))}: no such file")
            with path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
        except (OSError, ValueError) as error:
            if is_outage_of_file(error):
                raise  # it says nothing about the row
            raise invalid_argument(f"{excerpt(str(path))}: {getattr(error, 'strerror', None) or error}") from None
        if len(content) > MAX_FILE_BYTES:
            raise invalid_argument(f"{excerpt(str(path))}: the file has more than {MAX_FILE_BYTES} bytes")
        return content
