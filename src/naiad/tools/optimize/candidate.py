"""What is tried: a way to convert the source, and what came of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from naiad.tools.optimize.optimize_source import Format


class Precision(Enum):
    """The numbers of a candidate; tolerances depend on it."""

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    MIXED = "mixed"
    INT8_DYNAMIC = "int8_dynamic"
    INT8 = "int8"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A conversion of the source, before it has run."""

    name: str
    """`onnx-fp32`, `openvino-int8`, ...: a folder name, unique in a run."""
    format: Format
    precision: Precision
    backend: str
    """The backend of naiad that serves it."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the converter: opset, calibration method, nodes that stay in higher precision, ..."""
    after: str = ""
    """The candidate whose files this one is made from; "" for the source."""
    needs: tuple[str, ...] = ()
    """Packages of the converter, as requirements."""
    not_run: str = ""
    """Why it cannot run here, for example without a GPU; "" if it can."""
    is_float32: bool = False
    """The converter makes FP32 of FP64: operators of forests in ONNX have no other numbers."""

    @property
    def computes_in_float32(self) -> bool:
        """Whether outputs in FP64 have the digits of FP32."""
        return self.is_float32 or self.format in _FLOAT32


_FLOAT32 = (Format.OPENVINO, Format.LITERT, Format.TENSORRT, Format.TREELITE, Format.XGBOOST)
"""Formats whose runtimes compute in FP32."""


class Status(Enum):
    """How far a candidate has come."""

    PLANNED = "planned"
    NOT_RUN = "not run here"
    CONVERTED = "converted"
    """The files are there; their answers have not been compared with the source's yet."""
    FAILED = "failed"
    """The converter failed, hung, or needed too much memory."""
    REJECTED = "rejected"
    """It answers differently than the source; it can not be chosen, packaged or served."""
    PASSED = "passed"


@dataclass(frozen=True, slots=True)
class Conversion:
    """What a converter has made."""

    candidate: Candidate
    status: Status
    folder: Path
    """Model files, in the layout of a version folder of a repository."""
    duration_s: float = 0.0
    peak_mib: float = 0.0
    command: Sequence[str] = ()
    reason: str = ""
    """Of a failure, with the operator that has no counterpart where that is the cause."""
    log: str = ""
    """The last lines that the converter printed."""
    backend_parameters: Mapping[str, str] = field(default_factory=dict)
    """Parameters that `config.pbtxt` needs."""
