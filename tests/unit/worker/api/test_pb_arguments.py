"""What `pb_utils` accepts and refuses, as recorded from Triton 2.51's own module with the same values."""

from collections import deque

import numpy as np
import pytest

from naiad.worker.api import pb_utils
from naiad.worker.api.arguments import flag, integer, number, sequence, text
from naiad.worker.api.failure import ErrorCode, TritonModelException
from naiad.worker.api.logger import LogLevel, set_sink
from naiad.worker.api.request import ReceivedRequest, RequestPlan, set_caller


class Index:
    def __index__(self):
        return 1


class Int:
    def __int__(self):
        return 1


class Float:
    def __float__(self):
        return 1.0


class Text(str):
    __slots__ = ()


class Octets(bytes):
    pass


ARRAY = np.ones(2, np.float32)
TENSOR = pb_utils.Tensor("X", ARRAY)

STRINGS = {
    "str": "ab",
    "subclass of str": Text("ab"),
    "bytes": b"ab",
    "subclass of bytes": Octets(b"ab"),
    "bytearray": bytearray(b"ab"),
    "np.str_": np.str_("ab"),
    "np.bytes_": np.bytes_(b"ab"),
}
INTEGERS = {
    "int": 1,
    "True": True,
    "np.bool_": np.bool_(True),
    "np.int64": np.int64(1),
    "np.uint64": np.uint64(1),
    "np.int8": np.int8(1),
    "np.float32": np.float32(1),
    "__index__": Index(),
    "__int__": Int(),
    "array of no dimension": np.array(1),
}
REALS = {"float": 1.0, "np.float64": np.float64(1)}
OTHERS = {
    "None": None,
    "memoryview": memoryview(b"ab"),
    "array of a string": np.array("ab"),
    "list": [],
    "list of str": ["ab"],
    "tuple": (),
    "dict": {},
    "dict of str": {"ab": 1},
    "set": set(),
    "set of bytes": {b"ab"},
    "complex": 1j,
    "object": object(),
    "__float__": Float(),
    "tensor": TENSOR,
    "generator": (each for each in ["ab"]),
}
VALUES = {**STRINGS, **INTEGERS, **REALS, **OTHERS}


def request(**fields):
    return pb_utils.InferenceRequest(
        **{"inputs": [TENSOR], "requested_output_names": ["Y"], "model_name": "m", **fields}
    )


def response(*tensors):
    return pb_utils.InferenceResponse(list(tensors))


def changed_flags(value):
    asked = request()
    asked.set_flags(value)
    return asked.flags()


class Caller:
    """Keeps what the model asked for."""

    def __init__(self):
        self.asked = []

    def exec(self, request, decoupled, execution_timeout):
        self.asked.append((decoupled, execution_timeout))
        return decoupled, execution_timeout

    def command(self, notes, parts=()):
        self.asked.append((notes, parts))
        return '{"ready": true}'


@pytest.fixture(autouse=True)
def caller():
    caller = Caller()
    set_caller(caller)
    yield caller
    set_caller(None)


def command(caller, run):
    run()
    return caller.asked.pop()


class Metrics:
    """Registers everything."""

    cells = None

    def new_family(self, name, description, kind):
        self.last = (name, description, kind)
        return 0

    def new_metric(self, family, labels, buckets):
        self.last = (labels, buckets)
        return 0, buckets or ()


METRICS = Metrics()


def family(kind=pb_utils.MetricFamily.GAUGE, name="f", description="d"):
    return pb_utils.MetricFamily(name, description, kind, METRICS)


def family_name(value):
    family(name=value)
    return METRICS.last[0]


def family_description(value):
    family(description=value)
    return METRICS.last[1]


TEXTS = {
    "Tensor": lambda value: pb_utils.Tensor(value, ARRAY).name(),
    "Tensor.from_dlpack": lambda value: pb_utils.Tensor.from_dlpack(value, ARRAY).name(),
    "TritonError": lambda value: pb_utils.TritonError(value).message(),
    "request_id": lambda value: request(request_id=value).request_id(),
    "model_name": lambda value: request(model_name=value).model_name,
    "requested_output_names": lambda value: request(requested_output_names=[value]).requested_output_names().pop(),
    "MetricFamily name": family_name,
    "MetricFamily description": family_description,
}


@pytest.mark.parametrize("place", TEXTS)
def test_strings_may_be_bytes(place):
    for name, value in VALUES.items():
        if name in STRINGS:
            assert TEXTS[place](value) == "ab", name
            assert type(TEXTS[place](value)) is str, name
        else:
            with pytest.raises(TypeError, match=f"expected .* to be a str or bytes, found {type(value).__name__}"):
                TEXTS[place](value)


NUMBERS = {
    "model_version": lambda value: request(model_version=value).model_version,
    "flags": lambda value: request(flags=value).flags(),
    "set_flags": changed_flags,
    "timeout": lambda value: request(timeout=value).timeout(),
    "preferred_device_id": lambda value: pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, value).device_id,
    "execution_timeout": lambda value: request().exec(execution_timeout=value)[1],
}


@pytest.mark.parametrize("place", NUMBERS)
def test_integers_may_have_index_or_int(place):
    for name, value in VALUES.items():
        if name in INTEGERS:
            assert NUMBERS[place](value) == 1, name
            assert type(NUMBERS[place](value)) is int, name
        elif name in STRINGS and place == "model_version":
            # naiad: the name of a version.
            assert NUMBERS[place](value) == "ab", name
        else:
            with pytest.raises(TypeError, match=f"expected .* to be an int, found {type(value).__name__}"):
                NUMBERS[place](value)


@pytest.mark.parametrize(
    ("place", "lowest", "highest"),
    [
        ("model_version", -(2**63), 2**63 - 1),
        ("flags", 0, 2**32 - 1),
        ("timeout", 0, 2**64 - 1),
        ("preferred_device_id", -(2**63), 2**63 - 1),
    ],
)
def test_integers_have_bounds(place, lowest, highest):
    for value in (lowest, highest):
        assert NUMBERS[place](value) == value
    for value in (lowest - 1, highest + 1):
        with pytest.raises(TypeError, match=f"an int from {lowest} to {highest}, found {value}"):
            NUMBERS[place](value)


def test_correlation_ids():
    for name, value in {"int": 7, "most": 2**64 - 1, "np": np.uint64(7), "index": Index(), "True": True}.items():
        asked = request(correlation_id=value)
        assert asked.correlation_id() == int(value if name != "index" else 1)
        assert type(asked.correlation_id()) is int
    for value in STRINGS.values():
        assert request(correlation_id=value).correlation_id() == "ab"
    for name in ("float", "list", "dict", "__float__", "__int__", "np.float32", "np.bool_", "memoryview"):
        with pytest.raises(TritonModelException, match=r"^Correlation ID must be integer or string"):
            request(correlation_id=VALUES[name])
    for value in (None, -1, 2**64):
        with pytest.raises(TypeError, match="expected correlation_id to be an int"):
            request(correlation_id=value)


ENUMS = {
    "code": lambda value: pb_utils.TritonError("m", value),
    "level": lambda value: pb_utils.Logger.log("m", value),
    "memory": pb_utils.PreferredMemory,
    "kind": lambda value: family(kind=value),
    "preferred_memory": lambda value: request(preferred_memory=value),
    "trace": lambda value: request(trace=value),
}


@pytest.mark.parametrize("place", ENUMS)
def test_enums_and_objects_are_of_their_type(place):
    for value in [*VALUES.values(), 0, 2]:
        with pytest.raises(TypeError, match=r"expected .*found"):
            ENUMS[place](value)


def test_texts_and_numbers_of_enums():
    assert str(pb_utils.TritonError("x", pb_utils.TritonError.NOT_FOUND).code()) == "__ErrorCode.NOT_FOUND"
    assert repr(ErrorCode.INTERNAL) == "<__ErrorCode.INTERNAL: 1>"
    assert f"{pb_utils.TRITONSERVER_MEMORY_CPU}" == "MemoryType.TRITONSERVER_MEMORY_CPU"
    assert repr(pb_utils.MetricFamily.GAUGE) == "<MetricKind.GAUGE: 1>"
    assert (int(pb_utils.TRITONSERVER_MEMORY_GPU), int(pb_utils.TRITONSERVER_MEMORY_CPU)) == (0, 1)
    assert [int(kind) for kind in pb_utils.MetricKind] == [0, 1, 2]
    assert LogLevel.VERBOSE == 3


LISTS = {
    "output_tensors": lambda value: pb_utils.InferenceResponse(value).output_tensors(),
    "inputs": lambda value: request(inputs=value).inputs(),
}


@pytest.mark.parametrize("place", LISTS)
def test_tensors_are_in_a_sequence(place):
    for value in ([TENSOR], (TENSOR,), deque([TENSOR])):
        assert list(LISTS[place](value)) == [TENSOR]
    for name in set(VALUES) - {"list", "tuple"}:
        with pytest.raises(TypeError, match="expected "):
            LISTS[place](VALUES[name])
    with pytest.raises(TypeError, match="expected "):
        LISTS[place](each for each in [TENSOR])
    with pytest.raises(TritonModelException, match="should not be empty"):
        LISTS[place]([None])
    for name in set(VALUES) - {"None", "tensor"}:
        with pytest.raises(TypeError, match=r"expected .*found"):
            LISTS[place]([VALUES[name]])


def test_requested_output_names_are_in_a_sequence():
    for value in ([b"ab"], ("ab",), np.array([b"ab"]), np.array([b"ab"], object)):
        assert request(requested_output_names=value).requested_output_names() == {"ab"}
    for value in ("ab", b"ab", {"ab"}, {"ab": 1}, None, 1, (name for name in ["ab"])):
        with pytest.raises(TypeError, match="expected requested_output_names to be a list"):
            request(requested_output_names=value)
    with pytest.raises(
        TritonModelException, match="Requested output name for request with id 'i' and model name 'm'"
    ):
        request(request_id="i", requested_output_names=["Y", b""])


def test_three_arguments_of_a_request_are_needed():
    for name in ("inputs", "requested_output_names", "model_name"):
        fields = {"inputs": [], "requested_output_names": [], "model_name": "m"}
        del fields[name]
        with pytest.raises(TypeError, match=f"missing {name}"):
            pb_utils.InferenceRequest(**fields)


def test_parameters_are_a_dict_of_plain_values():
    for make in (
        lambda value: request(parameters=value).parameters(),
        lambda value: pb_utils.InferenceResponse([], None, value).parameters(),
    ):
        assert make({"k": np.str_("v"), np.str_("n"): True}) == '{"k": "v", "n": true}'
        for value in ([], "ab", 1):
            with pytest.raises(TritonModelException, match="Expect dict, got <class"):
                make(value)
        for value in (b"v", None, np.int64(1), np.bool_(True), [], Index()):
            with pytest.raises(TritonModelException, match="Expect parameters values to have type"):
                make({"k": value})
        for key in (b"k", 1, None):
            with pytest.raises(TritonModelException, match="Expect parameters keys to have type str"):
                make({key: 1})


def test_flags_of_calls_are_truth_values(caller):
    for value in (True, 1, np.bool_(True), 1.5, np.int64(2)):
        assert request().exec(decoupled=value)[0] is True
        assert command(caller, lambda: pb_utils.unload_model("m", value))[0]["dependents"] is True  # noqa: B023
    for value in ("true", b"", [], {}, None, object()):
        with pytest.raises(TypeError, match="expected decoupled to be a bool"):
            request().exec(decoupled=value)
        with pytest.raises(TypeError, match="expected unload_dependents to be a bool"):
            pb_utils.unload_model("m", value)


def test_commands_take_bytes(caller):
    for name, value in STRINGS.items():
        assert command(caller, lambda: pb_utils.is_model_ready(value, b"1"))[0]["model"] == "ab"  # noqa: B023
        path = value if name != "bytearray" else b"ab"
        notes, parts = command(caller, lambda: pb_utils.load_model(value, b"{}", {path: "x"}))  # noqa: B023
        assert notes == {"command": "load", "model": "ab", "config": "{}", "files": [("ab", 1)]}
        assert parts == [b"x"]
    for value in (None, 1, [], Index()):
        for run in (
            pb_utils.is_model_ready,
            lambda value: pb_utils.is_model_ready("m", value),
            pb_utils.load_model,
            lambda value: pb_utils.load_model("m", config=value),
            lambda value: pb_utils.load_model("m", files={value: b""} if value != [] else {None: b""}),
            lambda value: pb_utils.load_model("m", files={"p": value}),
            pb_utils.unload_model,
        ):
            with pytest.raises(TypeError, match="expected "):
                run(value)
    with pytest.raises(TritonModelException, match="failed to load model 'm', files should be a dictionary"):
        pb_utils.load_model("m", files=["p"])
    assert caller.asked == []


def test_log_lines_are_texts():
    lines = []
    set_sink(lambda level, file, line, text: lines.append((level, text)))
    try:
        for value in STRINGS.values():
            pb_utils.Logger.log(value, pb_utils.Logger.WARNING)
            pb_utils.Logger.log_info(value)
        pb_utils.Logger.log_error(b"\xff")
        for name in set(VALUES) - set(STRINGS):
            for write in (pb_utils.Logger.log, pb_utils.Logger.log_verbose, pb_utils.Logger.log_warn):
                with pytest.raises(TypeError, match="Logger: expected message"):
                    write(VALUES[name])
    finally:
        set_sink(lambda *_: None)
    assert lines == [(30, "ab"), (20, "ab")] * len(STRINGS) + [(40, "\ufffd")]


def test_tensors_are_found_by_bytes():
    tensor = pb_utils.Tensor("ab", ARRAY)
    received = ReceivedRequest(RequestPlan(), "", [tensor], lambda position: False, 0)
    for value in STRINGS.values():
        assert pb_utils.get_input_tensor_by_name(received, value) is tensor
        assert pb_utils.get_output_tensor_by_name(response(tensor), value) is tensor
        assert pb_utils.get_input_config_by_name({"input": [{"name": "ab"}]}, value) == {"name": "ab"}
        assert pb_utils.get_output_config_by_name({"output": [{"name": "ab"}]}, value) == {"name": "ab"}
    # Triton looks them up in Python: what equals no name is missing.
    for value in (None, 1, [], b"b", "b"):
        assert pb_utils.get_input_tensor_by_name(received, value) is None
        assert pb_utils.get_output_config_by_name({"output": [{"name": "ab"}]}, value) is None


@pytest.mark.parametrize("kind", [pb_utils.MetricFamily.COUNTER, pb_utils.MetricFamily.HISTOGRAM])
def test_labels_and_buckets(kind):
    made = family(kind=kind)
    for value in ([], (), "a", 1, [("a", "b")]):
        with pytest.raises(TritonModelException, match=r"Failed to create metric. Labels must be a dictionary."):
            made.Metric(labels=value)
    for value in ((1.0,), {1.0}, "1", 1.0, np.array([1.0]), {}):
        with pytest.raises(TritonModelException, match=r"Failed to create metric. Buckets must be a list."):
            made.Metric(buckets=value)
    if kind is pb_utils.MetricFamily.HISTOGRAM:
        made.Metric(labels={"a": "b"}, buckets=[np.float32(1), 2, Float(), Index()])
        assert METRICS.last == ({"a": "b"}, [1.0, 2.0, 1.0, 1.0])
        for value in ("1", None, [], Int()):
            with pytest.raises(TypeError, match="expected each bucket to be a number"):
                made.Metric(labels={"c": "d"}, buckets=[value])


def test_types_are_judged_before_values():
    """The order of Triton's own test."""
    for array in (None, [1, 2], b"ab", 1):
        for name in ("", b"", "X"):
            with pytest.raises(TypeError):
                pb_utils.Tensor(name, array)
    with pytest.raises(TritonModelException, match="Tensor name cannot be an empty string"):
        pb_utils.Tensor(b"", ARRAY)
    for name in ("", "X"):
        with pytest.raises(TritonModelException):
            pb_utils.Tensor.from_dlpack(name, None)


def test_conversions_alone():
    assert text(bytearray("é", "utf-8"), "x") == "é"
    with pytest.raises(UnicodeDecodeError):
        text(b"\xff", "x")
    assert integer(np.array(3), "x") == 3
    for value in (Float(), Index(), np.float32(1), True, np.array(1.0)):
        assert number(value, "x") == 1.0
    for value in ("1", b"1", bytearray(b"1"), memoryview(b"1"), Int(), None, 1j, np.array("a"), 10**400):
        with pytest.raises(TypeError, match="x to be a number"):
            number(value, "x")
    assert flag(0.0, "x") is False
    assert sequence(deque([1]), "x") == [1]
