"""A Python module with a client of one model, on `naiad.client`."""

import json
import keyword
from collections.abc import Sequence

from naiad.cli.client_code.model_interface import ModelInterface, Naming, TensorField
from naiad.core.datatype import DataType
from naiad.core.errors import excerpt

NAMING = Naming(reserved=frozenset((*keyword.kwlist, "np", "of_result", "self", "tensors")), is_lower=True)
"""`np` would hide the module in the annotations of the class; `tensors` and `of_result` are its methods."""

_INTRODUCTION = '''\
"""Client of the model {title}, written by `naiad client-code`.

{use}
"""

from __future__ import annotations

{imports}

import numpy as np
from numpy.typing import NDArray

from naiad.client import {client}

MODEL = {model}
'''
_CALL = """\
    with ModelClient("http://localhost:8000") as client:
        outputs = client.infer(Inputs({arguments}))"""
_STEP = """\
    async with ModelClient("grpc://localhost:8001") as client:
        inputs = Inputs({arguments})
        outputs = await client.infer(inputs, sequence_id=7, sequence_start=True)"""
_STREAM = """\
    async with ModelClient("grpc://localhost:8001") as client:
        async for outputs in client.stream(Inputs({arguments})):
            print(outputs)"""
_CLIENT = '''\
class ModelClient:
    """A client for any thread. Calls raise naiad.client.InferError."""

    def __init__(
        self,
        url: str = "http://localhost:8000",
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = 60.0,
    ) -> None:
        """`url` begins with http, https, grpc or grpcs; `headers` may have an API key."""
        self._client = connect(url, headers=headers, timeout_s=timeout_s)

    def __enter__(self) -> ModelClient:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def infer(self, inputs: Inputs, *, version: str = "") -> Outputs:
        """Execute the model; without a version the newest one."""
        return Outputs.of_result(self._client.infer(MODEL, inputs.tensors(), version=version))
'''
_LOOP_CLIENT = '''\
class ModelClient:
    """A client for one event loop. Calls raise naiad.client.InferError."""

    def __init__(
        self,
        url: str = "grpc://localhost:8001",
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = 60.0,
    ) -> None:
        """`url` begins with {protocols}; `headers` may have an API key.

        `timeout_s` is the limit of each response.
        """
        self._client = Client(url, headers=headers, timeout_s=timeout_s)

    async def __aenter__(self) -> ModelClient:
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

{call}'''
_STREAM_CALL = '''\
    async def stream(self, inputs: Inputs, *, version: str = "") -> AsyncIterator[Outputs]:
        """Execute the model and yield its responses as they arrive; without a version the newest one."""
        async with aclosing(self._client.infer_stream(MODEL, inputs.tensors(), version=version)) as results:
            async for result in results:
                yield Outputs.of_result(result)
'''
_SEQUENCE_CALL = '''\
    async def infer(
        self,
        inputs: Inputs,
        *,
        sequence_id: int | str,
        sequence_start: bool = False,
        sequence_end: bool = False,
        version: str = "",
    ) -> Outputs:
        """Execute the model for the next request of a sequence; without a version the newest one."""
        result = await self._client.infer(
            MODEL,
            inputs.tensors(),
            version=version,
            sequence_id=sequence_id,
            sequence_start=sequence_start,
            sequence_end=sequence_end,
        )
        return Outputs.of_result(result)
'''


def python_client(interface: ModelInterface) -> str:
    """Return the module."""
    arguments = ", ".join(f"{field.identifier}=..." for field in interface.inputs if not field.is_optional)
    use, imported, client = _client_of(interface)
    introduction = _INTRODUCTION.format(
        title=_in_docstring(excerpt(interface.name)),
        use=use.format(arguments=arguments),
        imports=_imports(interface),
        client=imported,
        model=_literal(interface.name),
    )
    return "\n\n".join((introduction, _inputs(interface.inputs), _outputs(interface.outputs), client))


def _client_of(interface: ModelInterface) -> tuple[str, str, str]:
    """Return an example, what it imports of naiad.client, and the class."""
    if interface.is_decoupled:
        return _STREAM, "Client, InferResult", _LOOP_CLIENT.format(protocols="grpc or grpcs", call=_STREAM_CALL)
    if interface.takes_sequences:
        protocols = "http, https, grpc or grpcs"
        return _STEP, "Client, InferResult", _LOOP_CLIENT.format(protocols=protocols, call=_SEQUENCE_CALL)
    return _CALL, "InferResult, connect", _CLIENT


def _imports(interface: ModelInterface) -> str:
    lines = ["from dataclasses import dataclass", "from typing import Any"]
    if interface.is_decoupled:
        names, context = "AsyncIterator, Mapping", ["from contextlib import aclosing"]
    else:
        names, context = "Mapping", []
    return "\n".join([f"from collections.abc import {names}", *context, *lines])


def _inputs(fields: Sequence[TensorField]) -> str:
    # A dataclass has its required fields first.
    ordered = sorted(fields, key=lambda field: field.is_optional)
    lines = [
        "@dataclass(frozen=True, kw_only=True)",
        "class Inputs:",
        '    """The inputs of the model, with the batch dimension where it has one; `any` is any size."""',
        "",
    ]
    for field in ordered:
        optional = " | None = None" if field.is_optional else ""
        lines += [f"    {field.identifier}: {_type_of(field)}{optional}", f'    """{_documented(field)}"""']
    lines += [
        "",
        "    def tensors(self) -> dict[str, NDArray[Any]]:",
        '        """Return the arrays by the names that the model gives them."""',
        "        found: dict[str, NDArray[Any] | None] = {",
    ]
    lines += [f"            {_literal(field.name)}: self.{field.identifier}," for field in ordered]
    lines += ["        }", "        return {name: array for name, array in found.items() if array is not None}", ""]
    return "\n".join(lines)


def _outputs(fields: Sequence[TensorField]) -> str:
    lines = ["@dataclass(frozen=True, kw_only=True)", "class Outputs:", '    """The outputs of the model."""', ""]
    for field in fields:
        lines += [f"    {field.identifier}: {_type_of(field)}", f'    """{_documented(field)}"""']
    lines += [
        "",
        "    @classmethod",
        "    def of_result(cls, result: InferResult) -> Outputs:",
        '        """Return the outputs of a response. Raises KeyError if one is missing."""',
        "        return cls(",
    ]
    lines += [f"            {field.identifier}=result[{_literal(field.name)}]," for field in fields]
    return "\n".join([*lines, "        )", ""])


def _type_of(field: TensorField) -> str:
    if field.datatype is DataType.BF16:
        return "NDArray[Any]"  # ml_dtypes has no type for it
    return f"NDArray[np.{_SCALARS.get(field.datatype, field.datatype.numpy.name)}]"


_SCALARS = {DataType.BYTES: "object_", DataType.BOOL: "bool_"}


def _documented(field: TensorField) -> str:
    notes = {DataType.BYTES: "; str or bytes, of outputs bytes", DataType.BF16: "; ml_dtypes.bfloat16"}
    return _in_docstring(f"{field.description}{notes.get(field.datatype, '')}.")


def _literal(text: str) -> str:
    # JSON's escapes are Python's, but for letters beyond 16 bits, which it would write as two.
    return json.dumps(text, ensure_ascii=False)


def _in_docstring(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
