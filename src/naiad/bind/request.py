"""A request as an inference callable gets it: a mapping from input names to arrays, with parameters."""

from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np

from naiad.core.parameters import ParameterValue
from naiad.core.tensor import Array


class Request(MutableMapping[str, Array]):
    """The inputs of one request by name, in the order of the configuration, batch dimension first."""

    __slots__ = ("_arrays", "parameters", "requested_output_names", "span")

    def __init__(
        self,
        data: dict[str, Array],
        parameters: dict[str, ParameterValue] | None = None,
        span: Any = None,
        requested_output_names: Sequence[str] | None = None,
    ) -> None:
        """`data` becomes the mapping. A read-only array in it is copied when it is first asked for."""
        self._arrays = data
        self.parameters = parameters
        """Custom parameters, and the headers that `http_header_forward_pattern` or the one of gRPC selects."""
        self.span = span
        """Always None: naiad traces requests itself (`trace_config`)."""
        self.requested_output_names = requested_output_names
        """The outputs that the client asked for; all outputs if it named none."""

    def __getitem__(self, name: str) -> Array:
        """Return an input as a writable array. Raises KeyError."""
        array: Any = self._arrays[name]  # decorators may put scalars in
        # Received tensors are views on the message. A model that never writes need not pay for a copy: see `views`.
        if isinstance(array, np.ndarray) and not (array.flags.writeable and array.flags.aligned):
            array = self._arrays[name] = array.copy()
        return array  # type: ignore[no-any-return]  # an array, unless a decorator has replaced it

    def __setitem__(self, name: str, array: Array) -> None:
        self._arrays[name] = array

    def __delitem__(self, name: str) -> None:
        del self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        inputs = ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in self._arrays.items())
        return f"Request({inputs}, parameters={self.parameters})"

    @property
    def data(self) -> dict[str, Array]:
        """The inputs as a dictionary of writable arrays."""
        return {name: self[name] for name in self._arrays}

    def views(self) -> dict[str, Array]:
        """Return the inputs without copies: read-only views on the received bytes."""
        return self._arrays

    @contextmanager
    def traced_span(self, span_name: str) -> Iterator[None]:
        """Do nothing: naiad traces requests itself."""
        yield


Requests: TypeAlias = list[Request]
