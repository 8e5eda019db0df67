"""Flags of `naiad serve FILE` for model files that do not describe themselves, in place of a config.pbtxt."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from naiad.core.datatype import DataType
from naiad.core.errors import InferError, invalid_argument
from naiad.options.flag import option

if TYPE_CHECKING:
    from naiad.config.model_config_pb2 import ModelConfig, ModelInput, ModelOutput

_METHODS = ("predict", "predict_proba", "transform", "decision_function")
_TENSOR = re.compile(r"(?:(?P<model>[^:]+):)?(?P<name>[^:]+):(?P<datatype>[A-Z][A-Z0-9]*)(?::(?P<dims>[-0-9,]*))?")
_EXAMPLE = "[MODEL:]NAME:DATATYPE:DIMS, such as x:FP32:-1,30"


@dataclass(frozen=True, slots=True)
class BareTensor:
    """An input or output, of one model or of all."""

    model: str
    """Empty for every bare file."""
    name: str
    datatype: DataType
    dims: Sequence[int]
    """With the batch, -1, in front if the model has one."""


@dataclass(frozen=True, slots=True)
class BareText:
    """A parameter, of one model or of all."""

    model: str
    value: str


def read_tensors(texts: Sequence[str]) -> tuple[BareTensor, ...]:
    """Return tensors of flags. Raises ValueError."""
    return tuple(_read_tensor(text) for text in texts)


def _read_tensor(text: str) -> BareTensor:
    found = _TENSOR.fullmatch(text)
    if found is None:
        raise ValueError(f"'{text}': expected {_EXAMPLE}")
    known = {each.value: each for each in DataType}
    datatype = known.get("BYTES" if found["datatype"] == "STRING" else found["datatype"])
    if datatype is None:
        raise ValueError(f"'{text}': no datatype {found['datatype']}; expected one of {', '.join(known)}")
    try:
        dims = tuple(int(each) for each in (found["dims"] or "").split(",") if each)
    except ValueError:
        dims = (0,)
    if any(dim == 0 or dim < -1 for dim in dims):
        raise ValueError(f"'{text}': expected dimensions from 1 on, or -1 for any size: {_EXAMPLE}")
    return BareTensor(found["model"] or "", found["name"], datatype, dims)


def read_methods(texts: Sequence[str]) -> tuple[BareText, ...]:
    """Return methods of flags. Raises ValueError."""
    found = read_texts(texts)
    for each in found:
        wrong = [name for name in each.value.split(",") if name not in _METHODS]
        if wrong:
            raise ValueError(f"'{wrong[0]}': expected one or more of {', '.join(_METHODS)}, with commas")
    return found


def read_picture_inputs(texts: Sequence[str]) -> tuple[BareText, ...]:
    """Return inputs that take pictures. Raises ValueError."""
    from naiad.config.tensors.pictures import parse_pictures  # not at the start: few servers have the flag

    found = read_texts(texts)
    for each in found:
        parse_pictures(each.value)
    return found


def read_texts(texts: Sequence[str]) -> tuple[BareText, ...]:
    """Return values of flags, which may begin with the name of a model. Raises ValueError."""
    pairs = [text.rpartition(":") for text in texts]
    if any(not value for _, _, value in pairs):
        raise ValueError("expected [MODEL:]VALUE")
    return tuple(BareText(model, value) for model, _, value in pairs)


def _shape(tensor: "ModelInput | ModelOutput", flag: BareTensor, has_batch: bool) -> None:
    tensor.dims.extend((flag.dims[1:] if has_batch else flag.dims) or (1,))
    if has_batch and len(flag.dims) == 1:
        tensor.reshape.SetInParent()


@dataclass(frozen=True)
class BareModelOptions:
    """Of model files that are served without a repository."""

    max_batch_size: int = option(
        32,
        "max-batch-size",
        "naiad: maximum batch size of bare model files (naiad serve model.onnx) that can batch; larger requests are "
        "executed in parts; 0: no batching.",
        minimum=0,
    )
    inputs: Sequence[BareTensor] = option(
        (),
        "input",
        "naiad: an input of a bare model file that does not describe it: [MODEL:]NAME:DATATYPE:DIMS, such as "
        "x:FP32:-1,30, where -1 in front is the batch; repeatable.",
        repeat=True,
        read=read_tensors,
        summary="Input of a model file that does not name it: x:FP32:-1,30.",
    )
    outputs: Sequence[BareTensor] = option(
        (),
        "output",
        "naiad: an output of a bare model file, as --input; repeatable.",
        repeat=True,
        read=read_tensors,
    )
    methods: Sequence[BareText] = option(
        (),
        "method",
        "naiad: [MODEL:]METHOD,...: what a bare scikit-learn file computes: predict, predict_proba, transform, "
        "decision_function; repeatable.",
        repeat=True,
        read=read_methods,
    )
    trusted_types: Sequence[BareText] = option(
        (),
        "trusted-types",
        "naiad: [MODEL:]TYPE,...: types in bare skops files whose code you trust; repeatable.",
        repeat=True,
        read=read_texts,
    )

    pictures: Sequence[BareText] = option(
        (),
        "pictures",
        "naiad: [MODEL:]INPUT[,resize=refuse|stretch|crop][,size=HxW][,scale=1|255][,mean=M/M/M][,std=S/S/S]"
        "[,folder=/PATH]: an input of a bare model file that takes pictures in base64, and files below a folder, "
        "decoded by the server; repeatable.",
        repeat=True,
        read=read_picture_inputs,
        summary="Input of a model file that takes pictures: x,resize=crop.",
    )

    @property
    def is_specific(self) -> bool:
        """Whether a flag describes models."""
        return bool(self.inputs or self.outputs or self.methods or self.trusted_types or self.pictures)

    def configure(self, config: "ModelConfig") -> None:
        """Add what the flags say of a model. Raises InferError(INVALID_ARG) for shapes that do not fit together."""
        inputs = [each for each in self.inputs if each.model in ("", config.name)]
        outputs = [each for each in self.outputs if each.model in ("", config.name)]
        batches = {bool(each.dims) and each.dims[0] == -1 for each in (*inputs, *outputs)}
        has_batch = batches == {True} and self.max_batch_size > 0
        if len(batches) > 1:
            raise self._no_common_batch(config.name)
        for each in inputs:
            _shape(config.input.add(name=each.name, data_type=each.datatype.config_number), each, has_batch)
        for each in outputs:
            _shape(config.output.add(name=each.name, data_type=each.datatype.config_number), each, has_batch)
        if has_batch:
            config.max_batch_size = self.max_batch_size
            config.dynamic_batching.SetInParent()
        for name, texts in (("method", self.methods), ("trusted_types", self.trusted_types)):
            values = [each.value for each in texts if each.model in ("", config.name)]
            if values:
                config.parameters[name].string_value = ",".join(values)
        pictures = [each.value for each in self.pictures if each.model in ("", config.name)]
        if pictures:
            config.parameters["pictures"].string_value = pictures[-1]

    def check_names(self, names: Sequence[str]) -> None:
        """Raise InferError(INVALID_ARG) for a flag that names none of the bare models."""
        flags = (
            ("input", self.inputs), ("output", self.outputs), ("method", self.methods),
            ("trusted-types", self.trusted_types), ("pictures", self.pictures),
        )  # fmt: skip
        for flag, values in flags:
            for each in values:
                if each.model not in ("", *names):
                    known = ", ".join(names) or "none"
                    raise invalid_argument(
                        f"--{flag}: '{each.model}' is no model file on the command line; those are: {known}"
                    )
                if not names:
                    raise invalid_argument(
                        f"--{flag} is for model files on the command line (naiad serve model.pt); models of a "
                        "repository have a config.pbtxt"
                    )

    def _no_common_batch(self, model: str) -> InferError:
        return invalid_argument(
            f"model '{model}': --input and --output: some tensors begin with -1, the batch, and some do not; begin "
            "all of them with -1, or none"
        )
