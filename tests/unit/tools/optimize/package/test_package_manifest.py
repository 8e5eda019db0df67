"""Manifests of packages that are damaged or hostile: each is an error of the package, never of the program."""

from pathlib import Path

import pytest

from naiad.tools.optimize.package.manifest import DamagedPackageError, read_manifest

ENTRY = (
    b'{"format": 1, "files": {"a": {"bytes": %s, "sha256": "x"}}, '
    b'"model": "m", "candidate": "c", "created": "", "digest": ""}'
)


@pytest.mark.parametrize(
    "text",
    [b"[" * 100_000, b'{"format":' * 100_000, b"", b"\xff", b"[]", b"null", b"1", b'{"format": 1, "files": []}',
     ENTRY % b"1e999", ENTRY % b"-1e999", ENTRY % b"null", ENTRY % (b"9" * 5000), ENTRY % b"{}"],
)  # fmt: skip
def test_manifest_that_is_no_manifest(text: bytes) -> None:
    with pytest.raises(DamagedPackageError):
        read_manifest(text, Path("package"))
