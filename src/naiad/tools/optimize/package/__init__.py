"""Packages: a chosen model with the evidence that it answers as its source, which another machine can prove again."""

from naiad.tools.optimize.package.package_export import export, export_files, opened_source
from naiad.tools.optimize.package.verification import Verification, verify
from naiad.tools.optimize.package.writing import check_target, write

__all__ = ["Verification", "check_target", "export", "export_files", "opened_source", "verify", "write"]
