"""Inference, errors, control and statistics: the same over every transport, with stock tritonclient."""

import re
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tritonclient.utils import triton_to_np_dtype

from support import transport as transports

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.parametrize("transport", transports.ALL, indirect=True),
]

A = np.arange(32, dtype=np.float32).reshape(2, 16)
B = np.full((2, 16), 3, np.float32)
BOTH = {"INPUT0": A, "INPUT1": B}
INTEGERS = [f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)]
DATATYPES = ["BOOL", *INTEGERS, "FP16", "FP32", "FP64", "BF16"]
STATISTICS = (
    "success",
    "fail",
    "queue",
    "compute_input",
    "compute_infer",
    "compute_output",
    "cache_hit",
    "cache_miss",
)
GENERATED_ID = re.compile(r"\[request id: [a-z0-9-]+\] ")


def sample(datatype):
    """Values at the ends of a datatype's range."""
    if datatype == "BOOL":
        return np.array([[True, False, False, True]])
    if datatype in INTEGERS:
        limits = np.iinfo(triton_to_np_dtype(datatype))
        return np.array([[limits.min, 0, 1, limits.max]], limits.dtype)
    return np.array([[-2.5, 0.0, 1.0, 1024.0]], triton_to_np_dtype(datatype))


class TestInfer:
    @pytest.mark.parametrize("request_id", ["", "1", "22", "ü 17", 'quote"\\', "x" * 300])
    def test_values_and_id(self, transport, request_id):
        result = transport.infer("add_sub", BOTH, request_id=request_id)
        np.testing.assert_array_equal(result["OUTPUT0"], A + B)
        np.testing.assert_array_equal(result["OUTPUT1"], A - B)
        assert (result.id, result.model) == (request_id, ("add_sub", "1"))

    def test_requested_outputs_only(self, transport):
        result = transport.infer("add_sub", BOTH, outputs=["OUTPUT1"])
        assert result.names == ["OUTPUT1"]
        np.testing.assert_array_equal(result["OUTPUT1"], A - B)

    def test_version_priority_timeout_and_parameters_are_accepted(self, transport):
        parameters = {"mine": 0.5, "on": True, "text": "x", "number": -3}
        result = transport.infer(
            "add_sub",
            BOTH,
            version="1",
            priority=1,
            timeout=1_000_000,
            parameters=parameters,
            headers={"x-mine": "1"},
        )
        np.testing.assert_array_equal(result["OUTPUT0"], A + B)

    @pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
    def test_compressed_requests(self, transport, algorithm):
        np.testing.assert_array_equal(transport.infer("add_sub", BOTH, compression=algorithm)["OUTPUT0"], A + B)
        with transport.fails("NOT_FOUND", "Request for unknown model: 'nowhere' is not found"):
            transport.infer("nowhere", BOTH, compression=algorithm)

    def test_python_model(self, transport):
        result = transport.infer("python_add_sub", BOTH)
        np.testing.assert_array_equal(result["OUTPUT0"], A + B)
        np.testing.assert_array_equal(result["OUTPUT1"], A - B)

    def test_large_tensor(self, transport):
        array = np.random.default_rng(1).random((1, 4_000_000), dtype=np.float32)
        np.testing.assert_array_equal(transport.infer("identity", {"INPUT0": array})["OUTPUT0"], array)

    def test_concurrent_connections_keep_their_responses(self, transport):
        def ask(connection):
            client = transport.new_client()
            for number in range(connection, 200, 8):
                row = np.full((1, 16), number, np.float32)
                result = transport.infer(
                    "add_sub", {"INPUT0": row, "INPUT1": B[:1]}, request_id=str(number), client=client
                )
                assert result.id == str(number)
                np.testing.assert_array_equal(result["OUTPUT0"], row + 3)
            client.close()

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(ask, range(8))) == [None] * 8


class TestDatatypes:
    @pytest.mark.parametrize("datatype", DATATYPES)
    def test_values_come_back_unchanged(self, transport, datatype):
        array = sample(datatype)
        model = f"identity_{datatype.lower()}"
        result = transport.infer(model, [transport.tensor("INPUT0", array, datatype)])
        np.testing.assert_array_equal(result["OUTPUT0"], array)
        assert result.spec("OUTPUT0") == (datatype, [1, 4])

    def test_strings(self, transport):
        array = np.array([[b"", b"a\0b", "grüße".encode(), b"\xff\xfe\0", b'quote " and \\\n']], dtype=np.object_)
        result = transport.infer("identity_string", {"INPUT0": array})
        assert result["OUTPUT0"].tolist() == array.tolist()

    @pytest.mark.parametrize("datatype", ["FP32", "FP64"])
    def test_not_a_number_and_infinity(self, transport, datatype):
        array = np.array([[np.nan, np.inf, -np.inf, -0.0]], triton_to_np_dtype(datatype))
        result = transport.infer(f"identity_{datatype.lower()}", {"INPUT0": array})
        np.testing.assert_array_equal(result["OUTPUT0"], array)
        assert np.signbit(result["OUTPUT0"][0, 3])

    @pytest.mark.parametrize("shape", [(1, 0), (0, 4), (8, 0)])
    def test_empty_tensors(self, transport, shape):
        result = transport.infer("identity", {"INPUT0": np.zeros(shape, np.float32)})
        assert result.spec("OUTPUT0") == ("FP32", list(shape))

    def test_no_strings(self, transport):
        result = transport.infer("identity_string", {"INPUT0": np.zeros((1, 0), np.object_)})
        assert result.spec("OUTPUT0") == ("BYTES", [1, 0])


class TestErrors:
    def test_unknown_model(self, transport):
        with transport.fails("NOT_FOUND") as caught:
            transport.infer("nothing", BOTH)
        assert caught.value.message() == "Request for unknown model: 'nothing' is not found"

    def test_unknown_version(self, transport):
        with transport.fails("NOT_FOUND") as caught:
            transport.infer("add_sub", BOTH, version="7")
        assert caught.value.message() == (
            "Request for unknown model: 'add_sub' version 7 is not found; known versions: 1"
        )

    @pytest.mark.parametrize(
        ("inputs", "text"),
        [
            (
                [("INPUT0", A)],
                "expected 2 inputs but got 1 inputs for model 'add_sub'. Got input(s) ['INPUT0'], but missing "
                "required input(s) ['INPUT1']. Please provide all required input(s).",
            ),
            ([*BOTH.items(), ("INPUT2", A)], "expected 2 inputs but got 3 inputs for model 'add_sub'."),
            ([("INPUT0", A), ("OTHER", B)], "unexpected inference input 'OTHER' for model 'add_sub'"),
            ([("INPUT0", A), ("INPUT0", B)], "input 'INPUT0' already exists in request"),
            (
                [("INPUT0", A), ("INPUT1", B[:1])],
                "input 'INPUT1' batch size does not match other inputs for 'add_sub'",
            ),
            (
                [("INPUT0", np.zeros((33, 16), np.float32)), ("INPUT1", np.zeros((33, 16), np.float32))],
                "inference request batch-size must be <= 32 for 'add_sub'",
            ),
            (
                [("INPUT0", A.astype(np.int32)), ("INPUT1", B)],
                "inference input 'INPUT0' data-type is 'INT32', but model 'add_sub' expects 'FP32'",
            ),
            (
                [("INPUT0", A[:, :15]), ("INPUT1", B[:, :15])],
                "unexpected shape for input 'INPUT0' for model 'add_sub'. Expected [-1,16], got [2,15]. NOTE:",
            ),
            (
                [("INPUT0", A.ravel()), ("INPUT1", B.ravel())],
                "unexpected shape for input 'INPUT0' for model 'add_sub'. Expected [-1,16], got [32].",
            ),
        ],
    )
    def test_inputs_that_do_not_fit_the_model(self, transport, inputs, text):
        with transport.fails("INVALID_ARGUMENT") as caught:
            transport.infer("add_sub", [transport.tensor(*each) for each in inputs], request_id="e1")
        # Triton: an unknown input name is rejected without the request's id.
        opening = "" if text.startswith("unexpected inference input") else "[request id: e1] "
        assert caught.value.message().startswith(f"{opening}{text}")

    @pytest.mark.parametrize(
        ("datatype", "shape", "data", "text"),
        [
            ("FP32", (), bytes(4), "input 'INPUT0' has no shape but model requires batch dimension"),
            ("FP32", (9, 1), bytes(36), "inference request batch-size must be <= 8 for 'identity'"),
            ("FP32", (4,), bytes(16), "unexpected shape for input 'INPUT0' for model 'identity'. Expected [-1,-1], "),
            (
                "FP32",
                (1, 2, 2),
                bytes(16),
                "unexpected shape for input 'INPUT0' for model 'identity'. Expected [-1,-1], got [1,2,2].",
            ),
            (
                "FP32",
                (1, 4),
                bytes(15),
                "input byte size mismatch for input 'INPUT0' for model 'identity'. Expected 16, got 15",
            ),
            (
                "FP32",
                (1, 4),
                b"",
                "input byte size mismatch for input 'INPUT0' for model 'identity'. Expected 16, got 0",
            ),
            (
                "FP32",
                (1, 2**62),
                bytes(16),
                f"input byte size mismatch for input 'INPUT0' for model 'identity'. Expected {2**64}, got 16",
            ),
            ("BYTES", (1, 1), b"\1\0\0", "incomplete string length indicator"),
            ("BYTES", (1, 1), struct.pack("<I", 5) + b"four", "incomplete string data"),
            ("BYTES", (1, 1), struct.pack("<I", 2**32 - 1), "incomplete string data"),
            (
                "BYTES",
                (1, 1),
                bytes(8),
                "unexpected number of string elements 2 for inference input 'INPUT0' for model 'identity_string', "
                "expecting 1",
            ),
            ("BYTES", (1, 1), b"", "expected 1 string elements for inference input 'INPUT0'"),
        ],
    )
    def test_data_that_does_not_fit_its_shape(self, transport, datatype, shape, data, text):
        model = "identity_string" if datatype == "BYTES" else "identity"
        with transport.fails("INVALID_ARGUMENT") as caught:
            transport.infer(model, [transport.raw_tensor("INPUT0", datatype, shape, data)])
        assert GENERATED_ID.sub("", caught.value.message()).startswith(text)
        transport.infer("identity", {"INPUT0": A[:1]})

    @pytest.mark.parametrize(
        ("outputs", "text"),
        [
            (["OUTPUT9"], "unexpected inference output 'OUTPUT9' for model 'add_sub'"),
            (["OUTPUT0", "OUTPUT0"], "output 'OUTPUT0' already exists in request"),
        ],
    )
    def test_outputs_that_the_model_does_not_have(self, transport, outputs, text):
        with transport.fails("INVALID_ARGUMENT", text):
            transport.infer("add_sub", BOTH, outputs=outputs)


class TestControl:
    def test_health(self, transport):
        client = transport.client
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("add_sub")
        assert client.is_model_ready("add_sub", "1")
        assert not client.is_model_ready("add_sub", "2")
        assert not client.is_model_ready("nothing")

    def test_metadata(self, transport):
        expected = {"statistics", "binary_tensor_data", "model_configuration", "sequence"}
        assert expected <= transport.extensions()
        metadata = transport.metadata("add_sub")
        assert (metadata.name, list(metadata.versions)) == ("add_sub", ["1"])
        assert {(spec.name, spec.datatype, tuple(spec.shape)) for spec in metadata.inputs} == {
            ("INPUT0", "FP32", (-1, 16)),
            ("INPUT1", "FP32", (-1, 16)),
        }
        for unknown in (("nothing",), ("add_sub", "9")):
            with transport.fails("NOT_FOUND"):
                transport.metadata(*unknown)

    def test_config(self, transport):
        config = transport.config("identity_int8")
        assert (config.name, config.backend, config.max_batch_size) == ("identity_int8", "identity", 8)
        assert [(spec.name, list(spec.dims)) for spec in config.input] == [("INPUT0", [-1])]
        assert config.version_policy.latest.num_versions == 1
        assert config.instance_group[0].count == 1
        with transport.fails("NOT_FOUND"):
            transport.config("nothing")

    def test_index(self, transport, repository):
        assert transport.index() == {path.name: ("1", "READY", "") for path in repository.iterdir()}

    def test_load_and_unload_need_explicit_mode(self, transport):
        for call in (transport.client.load_model, transport.client.unload_model):
            with transport.fails(
                "INVALID_ARGUMENT", "explicit model load / unload is not allowed if polling is enabled"
            ):
                call("add_sub")


class TestStatistics:
    """Protocol notes 8: what is counted, and in which unit."""

    model = "identity_uint16"

    def row(self, transport, model=model):
        (row,) = transport.statistics(model)
        return row

    def infer(self, transport, rows):
        transport.infer(self.model, {"INPUT0": np.ones((rows, 2), np.uint16)})

    @staticmethod
    def gained(before, after, field):
        return {
            name: getattr(getattr(after.inference_stats, name), field)
            - getattr(getattr(before.inference_stats, name), field)
            for name in STATISTICS
        }

    def test_successes_are_counted_exactly(self, transport):
        before = self.row(transport)
        started_ms = time.time() * 1000
        for rows in (1, 3, 3, 8):
            self.infer(transport, rows)
        after = self.row(transport)
        assert self.gained(before, after, "count") == dict.fromkeys(STATISTICS, 4) | {
            "fail": 0,
            "cache_hit": 0,
            "cache_miss": 0,
        }
        assert after.inference_count - before.inference_count == 1 + 3 + 3 + 8
        assert after.execution_count - before.execution_count == 4
        assert started_ms - 1000 <= after.last_inference <= time.time() * 1000 + 1000
        past, now = (
            {batch.batch_size: batch.compute_infer.count for batch in row.batch_stats} for row in (before, after)
        )
        assert {size: now[size] - past.get(size, 0) for size in (1, 3, 8)} == {1: 1, 3: 2, 8: 1}
        assert list(now) == sorted(now)

    def test_durations_add_up(self, transport):
        before = self.row(transport)
        self.infer(transport, 2)
        gained_ns = self.gained(before, self.row(transport), "ns")
        parts = sum(gained_ns[name] for name in ("queue", "compute_input", "compute_infer", "compute_output"))
        assert 0 < parts <= gained_ns["success"]
        assert all(ns >= 0 for ns in gained_ns.values())

    def test_slow_execution_shows_in_compute_infer(self, transport):
        before = self.row(transport, "slow_identity")
        transport.infer("slow_identity", {"INPUT0": A[:1]})
        assert self.gained(before, self.row(transport, "slow_identity"), "ns")["compute_infer"] >= 200_000_000

    def test_rejected_requests_are_not_counted(self, transport):
        before = self.row(transport)
        for _ in range(3):
            with transport.fails("INVALID_ARGUMENT"):
                transport.infer(self.model, {"INPUT0": A})
        assert self.row(transport) == before

    def test_errors(self, transport):
        with transport.fails("INVALID_ARGUMENT", "requested model 'nothing' is not available"):
            transport.statistics("nothing")
        with transport.fails("INVALID_ARGUMENT", "requested model version is not available for model 'add_sub'"):
            transport.statistics("add_sub", "9")

    def test_all_models(self, transport, repository):
        assert [row.name for row in transport.statistics()] == sorted(path.name for path in repository.iterdir())
