"""ONNX Runtime, imported in one place, after its telemetry is off."""

import os

from naiad.backend.onnx import telemetry

telemetry.turn_off(os.environ)

import onnxruntime as onnxruntime  # noqa: E402 - after the variable is set; exported

__all__ = ["onnxruntime"]
