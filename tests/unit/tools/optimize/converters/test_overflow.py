"""Processors on which sums of int8 products overflow."""

import platform

import pytest

from naiad.tools.optimize.converters.openvino_ir import sums_overflow


@pytest.mark.parametrize(
    ("machine", "flags", "expected"),
    [
        ("x86_64", "flags : fpu avx2", True),
        ("x86_64", "flags : avx2 avx_vnni", False),
        ("AMD64", "flags : avx512f avx512_vnni", False),
        ("x86_64", None, True),
        ("aarch64", None, False),
    ],
)
def test_sums_overflow_without_vnni(tmp_path, monkeypatch, machine, flags, expected):
    monkeypatch.setattr(platform, "machine", lambda: machine)
    if flags is not None:
        (tmp_path / "cpuinfo").write_text(flags)
    assert sums_overflow(tmp_path / "cpuinfo") is expected
