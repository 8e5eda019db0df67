"""The control groups of this process, where the kernel keeps its limits of cores and memory."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def control_groups(controller: str, root: Path = Path("/")) -> Iterator[tuple[Path, bool]]:
    """Yield the directories of the process's group for a controller, of those above it, and whether they are v2.

    `/proc/self/cgroup` has lines `hierarchy-id:controllers:path`; v2 has no controllers (cgroups(7)). `root` is where
    `proc` and `sys` are looked for.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    base = root / "sys/fs/cgroup"
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mounts, is_v2 = [base, base / "unified"], True
        elif controller in controllers.split(","):
            mounts, is_v2 = [base / controllers, base / controller], False
        else:
            continue
        # Inside a container the path may be that of the host while the container's group is mounted at the top;
        # directories that do not exist have no limits to read.
        inner = PurePosixPath(path.lstrip("/"))
        for mount in mounts:
            for part in (inner, *inner.parents):
                yield mount / part, is_v2
