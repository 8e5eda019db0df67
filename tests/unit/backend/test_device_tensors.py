"""Outputs that are no numpy arrays: tensors that only speak DLPack."""

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from naiad.backend.assembler import COPY_LIMIT_BYTES
from naiad.backend.tensor_instance import TensorInstance
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import ErrorCode, InferError
from naiad.core.tensor import Array
from naiad.worker.api.dlpack import export_array
from support.backend_parts import execute, infer, make_context, make_header, make_request, output_arrays

CUDA = (2, 0)


class HostTensor:
    """Has the two methods of DLPack and nothing else."""

    def __init__(self, array: Array) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


class ShapedTensor(HostTensor):
    """Has shape and dtype as numpy spells them, as JAX and CuPy do."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self._array.shape

    @property
    def dtype(self) -> Any:
        return self._array.dtype


class BfloatTensor(HostTensor):
    """Exports bit patterns as BF16, which numpy does not read."""

    def __dlpack__(self, **_: Any) -> Any:
        return export_array(self._array, "BF16")


class DeviceTensor(HostTensor):
    """Says that it is on a GPU, and copies to the host when asked for that."""

    copies = 0

    def __dlpack__(self, *, dl_device: Any = None, **options: Any) -> Any:
        if dl_device != (1, 0):
            raise BufferError("this tensor is on a GPU")
        DeviceTensor.copies += 1
        return self._array.copy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA


class StuckTensor(DeviceTensor):
    """Is on a GPU and cannot be copied through DLPack."""

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("export to another device is not supported")


class WrappingInstance(TensorInstance):
    """Returns twice its input, wrapped."""

    def __init__(self, config: ModelConfig, wrap: Callable[[Array], Any]) -> None:
        super().__init__(make_context(config))
        self._wrap = wrap
        self.made: list[Array] = []

    def run(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[Any]:
        self.made.append(inputs["X"] * 2)
        return [self._wrap(self.made[-1])]


def config(datatype: str = "TYPE_FP32") -> ModelConfig:
    made = ModelConfig(name="m", max_batch_size=8)
    made.input.add(name="X", data_type=datatype, dims=[-1])
    made.output.add(name="Y", data_type=datatype, dims=[-1])
    return made


@pytest.mark.parametrize("wrap", [HostTensor, ShapedTensor, DeviceTensor, np.asarray])
@pytest.mark.parametrize("count", [1, 3])
def test_tensors_become_the_outputs_of_each_request(wrap, count):
    instance = WrappingInstance(config(), wrap)
    arrays = [{"X": np.arange(4, dtype=np.float32).reshape(1, 4) + number} for number in range(count)]
    header = make_header(arrays[0])
    for _ in range(3):
        responses = execute(instance, [make_request(each, header=header) for each in arrays])
        for response, each in zip(responses, arrays, strict=True):
            np.testing.assert_array_equal(output_arrays(response)["Y"], each["X"] * 2)
        assert len({id(response.header) for response in responses}) == 1


def test_mixed_batches_accept_tensors():
    instance = WrappingInstance(config(), HostTensor)
    arrays = [{"X": np.ones((rows, 2), np.float32) * rows} for rows in (1, 3)]
    responses = execute(instance, [make_request(each, rows=len(each["X"])) for each in arrays])
    for response, each in zip(responses, arrays, strict=True):
        np.testing.assert_array_equal(output_arrays(response)["Y"], each["X"] * 2)


def test_host_tensors_are_not_copied():
    instance = WrappingInstance(config(), HostTensor)
    size = COPY_LIMIT_BYTES  # elements of four bytes: above the limit
    (response,) = execute(instance, [make_request({"X": np.ones((1, size), np.float32)})])
    assert np.shares_memory(np.frombuffer(response.data[0], np.float32), instance.made[0])


def test_inputs_can_be_imported_without_a_copy():
    class ImportingInstance(TensorInstance):
        def run(self, inputs: dict[str, Array], output_names: Sequence[str]) -> Sequence[Any]:
            self.imported = np.from_dlpack(inputs["X"])
            return [HostTensor(self.imported)]

    instance = ImportingInstance(make_context(config()))
    request = make_request({"X": np.ones((1, COPY_LIMIT_BYTES), np.float32)})
    request.data = [bytes(request.data[0])]
    (response,) = execute(instance, [request])
    assert np.shares_memory(instance.imported, np.frombuffer(request.data[0], np.float32))
    assert np.shares_memory(instance.imported, np.frombuffer(response.data[0], np.float32))


def test_device_tensors_are_copied_once():
    instance = WrappingInstance(config(), DeviceTensor)
    before = DeviceTensor.copies
    infer(instance, {"X": np.ones((1, 4), np.float32)})
    assert DeviceTensor.copies == before + 1


def test_bfloat16_tensors_keep_their_bits():
    bits = np.array([[0x3F80, 0x4000]], np.uint16)
    instance = WrappingInstance(config("TYPE_BF16"), lambda _: BfloatTensor(bits))
    got = infer(instance, {"X": np.ones((1, 2), ml_dtypes.bfloat16)})["Y"]
    np.testing.assert_array_equal(got.astype(np.float32), [[1.0, 2.0]])


def test_strided_tensors_are_answered_in_c_order():
    matrix = np.arange(6, dtype=np.float32).reshape(3, 2)
    instance = WrappingInstance(config(), lambda _: HostTensor(matrix.T))
    got = infer(instance, {"X": np.ones((2, 3), np.float32)})["Y"]
    np.testing.assert_array_equal(got, matrix.T)


def test_outputs_are_checked_like_arrays():
    instance = WrappingInstance(config(), lambda array: HostTensor(array.astype(np.float64)))
    with pytest.raises(InferError, match="returned output 'Y' with datatype FP64"):
        infer(instance, {"X": np.ones((1, 2), np.float32)})


def test_a_tensor_that_cannot_be_copied_is_named():
    instance = WrappingInstance(config(), StuckTensor)
    with pytest.raises(InferError) as caught:
        infer(instance, {"X": np.ones((1, 2), np.float32)})
    assert caught.value.code is ErrorCode.INTERNAL
    assert caught.value.message == (
        "model 'm' returned output 'Y': a StuckTensor on DLPack device (2, 0) cannot become an array: export to "
        "another device is not supported"
    )


def test_an_adapter_may_copy_in_its_own_way():
    class OwnCopy(WrappingInstance):
        @staticmethod
        def to_host(tensor: Any) -> Array:
            return np.asarray(tensor._array)

    instance = OwnCopy(config(), StuckTensor)
    np.testing.assert_array_equal(infer(instance, {"X": np.ones((1, 2), np.float32)})["Y"], [[2, 2]])
