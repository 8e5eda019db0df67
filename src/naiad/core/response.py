"""An inference response: a header that many responses share, and the output data."""

from collections.abc import Mapping, Sequence
from typing import Final

from naiad.core.errors import InferError
from naiad.core.parameters import NO_PARAMETERS, ParameterValue
from naiad.core.tensor import Buffer, TensorSpec


class ResponseHeader:
    """Model name, version and output specs; shared by all responses of equal shape.

    Encoders store values derived from a header (a protobuf prefix, a JSON fragment) in `memo`, keyed by themselves,
    so each is derived once.
    """

    __slots__ = ("memo", "model_name", "model_version", "outputs")

    def __init__(self, model_name: str, model_version: str, outputs: Sequence[TensorSpec]) -> None:
        self.model_name = model_name
        self.model_version = model_version
        self.outputs = tuple(outputs)
        self.memo: dict[object, object] = {}


class InferResponse:
    """One response: outputs or an error.

    `data` has one buffer per output in the order of `header.outputs`, or a `DeviceTensor` for an output that may stay
    on its device. An error response has no data and its `header` names the model with no outputs. `final` is False
    only for responses of decoupled models that are followed by more; a final response of a decoupled model may be
    empty (`empty_final`), in which case only the completion is sent.
    """

    __slots__ = ("data", "empty_final", "error", "final", "header", "parameters")

    def __init__(
        self,
        header: ResponseHeader,
        data: Sequence[Buffer] = (),
        *,
        error: InferError | None = None,
        parameters: Mapping[str, ParameterValue] = NO_PARAMETERS,
        final: bool = True,
        empty_final: bool = False,
    ) -> None:
        self.header = header
        self.data = data
        self.error = error
        self.parameters = parameters
        self.final = final
        self.empty_final = empty_final


RESCHEDULE: Final = InferResponse(ResponseHeader("", "", ()))
"""Result of an instance of an iterative model instead of a response: execute the request again."""

LATE: Final = InferResponse(ResponseHeader("", "", ()))
"""Result of an instance instead of a response, for a request in `Batch.left_open`."""
