"""ONNX's own operator tests through the backend: models of every datatype and shape with known inputs and outputs.

What the operators compute is for ONNX Runtime to prove. The server adds how tensors of a datatype and rank come in
and go out, so that of cases with the same signature one is served. A long run
does it, since ONNX computes the outputs of the cases in Python; test_backends.py has each datatype and rank in CI.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx.backend.test.case.node import collect_testcases

from naiad.core.datatype import from_numpy
from naiad.core.errors import InferError
from naiad.core.tensor import Array
from support.backend_parts import infer, load_onnx, new_instance, strings

_LEFT_OUT = ("strnormalizer", "bernoulli", "dropout", "training", "random")
"""The first needs the locale en_US.UTF-8 to be installed, the other ones draw random numbers."""
_LEAST_COUNT = 250
"""Of 363 signatures; the rest have sequences or optional values, or operators newer than ONNX Runtime."""


def _operator_cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    return [case for case in cases if not any(word in case.name for word in _LEFT_OUT)]


def _arrays(names: Sequence[str], values: Sequence[Any]) -> dict[str, Array] | None:
    """Return tensors as they travel; None when the protocol cannot carry them."""
    arrays: dict[str, Array] = {}
    for name, value in zip(names, values, strict=False):
        if not isinstance(value, np.ndarray | np.generic) or from_numpy(np.asarray(value).dtype) is None:
            return None
        array = np.asarray(value)
        if array.dtype.kind in "OSU":
            texts = [e if isinstance(e, bytes) else str(e).encode() for e in array.ravel().tolist()]
            array = strings(*texts).reshape(array.shape)
        # Triton: a scalar travels as one element, and 'reshape' takes the dimension away again.
        arrays[name] = array.reshape(array.shape or (1,))
    return arrays


def _bare_outputs(case: Any) -> Sequence[Any] | None:
    """Return what ONNX Runtime itself computes, None when it fails; what ONNX expects where it has no arrays (BF16).

    Where ONNX Runtime computes something else than ONNX expects, that is not for a server to correct.
    """
    inputs, outputs = case.data_sets[0]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(case.model.SerializeToString(), options)
    feed = {i.name: np.asarray(value) for i, value in zip(case.model.graph.input, inputs, strict=False)}
    try:
        return session.run([output.name for output in case.model.graph.output], feed)
    except RuntimeError:
        return outputs
    except Exception:  # a different class for each status
        return None


def _agree(returned: Array, expected: Array) -> bool:
    if returned.shape != expected.shape or returned.dtype != expected.dtype:
        return False
    if expected.dtype == object or expected.dtype.kind in "biu":
        return returned.tolist() == expected.tolist()
    return np.allclose(returned.astype(np.float64), expected.astype(np.float64), rtol=1e-6, equal_nan=True)


def _serve(path: Path, case: Any) -> tuple[dict[str, Array], dict[str, Array]] | None:
    """Return served outputs and expected ones; None for a case that does not load or cannot be asked for."""
    graph = case.model.graph
    inputs = _arrays([i.name for i in graph.input], case.data_sets[0][0])
    if not inputs or _arrays([o.name for o in graph.output], case.data_sets[0][1]) is None:
        return None
    try:
        # A first dimension is a batch only in models made for it; these are not.
        model, config = load_onnx(
            path, case.model.SerializeToString(), backend_config={"default-max-batch-size": "0"}
        )
    except InferError:
        return None
    bare = _bare_outputs(case)
    expected = _arrays([o.name for o in graph.output], bare) if bare is not None else None
    if expected is None:
        return None
    return infer(new_instance(model), {t.name: inputs[t.name] for t in config.input}), expected


def _kind(value: Any) -> Any:
    """Return the part of a case's signature that a value is."""
    return (value.dtype, value.ndim) if isinstance(value, np.ndarray | np.generic) else type(value)


@pytest.mark.long
@pytest.mark.timeout(900)  # hundreds of small models
def test_operator_tests_of_onnx(tmp_path: Path) -> None:
    seen, wrong = set(), []
    for number, case in enumerate(_operator_cases()):
        signature = tuple(tuple(map(_kind, values)) for values in case.data_sets[0])
        if signature in seen:
            continue
        try:
            served = _serve(tmp_path / str(number), case)
        except InferError as error:
            wrong.append(f"{case.name}: {error.message[:200]}")
            continue
        if served is None:
            continue
        seen.add(signature)
        returned, expected = served
        wrong += [f"{case.name}: output '{n}'" for n in expected if not _agree(returned[n], expected[n])]
    assert len(seen) >= _LEAST_COUNT
    assert wrong == []
