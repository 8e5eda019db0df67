"""Backends that installed packages announce, found without `importlib.metadata` where there are none.

That library parses every package's entry points, and importing it takes as long as importing 40 modules of this
package. Most servers have no backend but the built-in ones, which a search for the group's heading shows.
"""

import os
import sys
from collections.abc import Iterator

ENTRY_POINT_GROUP = "naiad.backends"
_OWN_PREFIX = "naiad-"
"""The directory of this package's metadata: its backends are built in."""


def announced_backends() -> dict[str, str]:
    """Return the backends that installed packages announce, name to `module:class`."""
    if not _may_be_announced():
        return {}
    from importlib.metadata import entry_points

    points = [point for point in entry_points(group=ENTRY_POINT_GROUP) if not point.value.startswith("naiad.")]
    return {point.name: point.value.split("[")[0].strip() for point in points}


def _may_be_announced() -> bool:
    """Return whether some other package may announce backends; True where packages are not in directories."""
    heading = f"[{ENTRY_POINT_GROUP}]".encode()
    for directory in dict.fromkeys(sys.path):
        if os.path.isfile(directory):
            return True  # an archive
        for path in _metadata(directory or os.curdir):
            try:
                with open(path, "rb") as file:
                    if heading in file.read():
                        return True
            except OSError:
                continue  # a package without entry points
    return False


def _metadata(directory: str) -> Iterator[str]:
    """Yield where the entry points of the packages in a directory would be."""
    try:
        names = os.listdir(directory)
    except OSError:
        return
    for name in names:
        if (name.endswith(".dist-info") and not name.startswith(_OWN_PREFIX)) or name.endswith(".egg-info"):
            yield os.path.join(directory, name, "entry_points.txt")
        elif name.endswith(".egg"):
            yield os.path.join(directory, name, "EGG-INFO", "entry_points.txt")
