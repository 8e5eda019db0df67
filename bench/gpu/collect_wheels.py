"""Collect the packages that naiad needs and a machine with PyTorch for CUDA lacks, as wheels for Python 3.12.

    python -m bench.gpu.collect_wheels [--directory bench/gpu/.wheels] [--python 3.12] [PACKAGE ...]

There, without a registry:

    python3 -m pip install --no-index --no-deps --no-compile --target /tmp/site bench/gpu/.wheels/*.whl
    export PYTHONPATH=/tmp/site
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PACKAGES = ("httptools", "orjson", "pysimdjson", "hpack", "tritonclient", "python-rapidjson")
"""naiad's own, which PyTorch's images do not have, and the official client with the one package that it imports."""
GLIBC_MINORS = (39, 36, 35, 34, 31, 28, 27, 24, 17, 12, 5)
LIMIT_MIB = 25
HOME = Path(__file__).resolve().parent / ".wheels"


def command(python: str, directory: Path, packages: Sequence[str]) -> list[str]:
    """Return pip's command for wheels of Linux on x86-64, without what they need themselves."""
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in GLIBC_MINORS] + [
        "manylinux2014_x86_64",
        "manylinux1_x86_64",
    ]
    tags = [word for platform in platforms for word in ("--platform", platform)]
    options = ["--no-deps", "--only-binary=:all:", "--python-version", python, "--implementation", "cp", *tags]
    return [sys.executable, "-m", "pip", "download", "-q", *options, "-d", str(directory), *packages]


def main(arguments: Sequence[str]) -> int:
    """Download; return 1 if pip fails or the wheels are too large to bring along."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu.collect_wheels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--directory", type=Path, default=HOME)
    parser.add_argument("--python", default="3.12", help="version of the machine's Python; default 3.12")
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help="in place of the default ones")
    given = parser.parse_args(arguments)
    given.directory.mkdir(parents=True, exist_ok=True)
    for old in given.directory.glob("*.whl"):
        old.unlink()
    status = subprocess.run(
        command(given.python, given.directory, given.packages or PACKAGES), check=False
    ).returncode
    if status:
        print(f"pip download ended with {status}", file=sys.stderr)
        return 1
    wheels = sorted(given.directory.glob("*.whl"))
    size_mib = sum(wheel.stat().st_size for wheel in wheels) / (1 << 20)
    for wheel in wheels:
        print(f"{wheel.stat().st_size / (1 << 20):6.2f} MiB  {wheel.name}")
    print(f"{size_mib:6.2f} MiB  of at most {LIMIT_MIB}")
    return int(size_mib > LIMIT_MIB)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
