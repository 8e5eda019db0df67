"""Shared memory of naiad perf against a real server: a slot for each request, and nothing left behind."""

import asyncio
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from naiad.client import Client, InferError
from naiad.tools.perf.inputs.memory_blocks import DIRECTORY, SystemBlock
from naiad.tools.perf.inputs.shared_memory import in_shared_memory
from naiad.tools.perf.inputs.templates import prepare_inputs
from naiad.tools.perf.perf_plan import InputSettings, ModelLoad
from support import onnx_models
from support.model_repository import add_sub_config, write_identity, write_model
from support.server_process import serving


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    config = add_sub_config("onnxruntime", max_batch_size=32, extra="dynamic_batching { }")
    write_model(root, "add_sub", config, {"1/model.onnx": onnx_models.add_sub()})
    write_identity(root, "strings", datatype="STRING")
    return root


@pytest.fixture(scope="module")
def shm_server(models, tmp_path_factory):
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(log, f"--model-repository={models}", "--allow-client-shm=true") as running:
        yield running


def url_of(protocol, server):
    return f"http://{server.http_url}" if protocol == "http" else f"grpc://{server.grpc_url}"


@pytest.fixture(params=["http", "grpc"])
def url(request, shm_server):
    return url_of(request.param, shm_server)


async def prepared(client, model, batch_size=1, **settings):
    metadata, config = await client.model_metadata(model), await client.model_config(model)
    return prepare_inputs(ModelLoad(model, "", batch_size, InputSettings(**settings)), metadata, config)


async def answer(client, template):
    """Send a template; the body of its exchange."""
    response = (await client._calls.infer(template.header, "", template.data, None, {}))[1]
    return [(response.header.outputs, [bytes(each) for each in response.data])]


def left():
    return list(Path(DIRECTORY).glob(f"naiad_perf_{os.getpid()}_*"))


def samples(tmp_path, *, wrong=False):
    rows = [np.arange(16.0) + i for i in range(2)]
    data = [{"INPUT0": row.tolist(), "INPUT1": row.tolist()} for row in rows]
    outputs = [{"OUTPUT0": (2 * row + wrong).tolist(), "OUTPUT1": [0] * 16} for row in rows]
    path = tmp_path / "data.json"
    path.write_text(json.dumps({"data": data, "validation_data": outputs}))
    return (str(path),)


@pytest.mark.parametrize("batch_size", [1, 2])
def test_each_slot_has_its_outputs(url, tmp_path, batch_size):
    async def body():
        async with Client(url) as client:
            plain = await prepared(client, "add_sub", batch_size, sources=samples(tmp_path))
            async with in_shared_memory(client, "system", plain, slots=3) as templates:
                assert templates.has_slots
                variants = [(index, slot) for index in range(len(plain.templates)) for slot in range(3)]
                bodies = await asyncio.gather(*(answer(client, templates.variant(*each)) for each in variants[:3]))
                assert all(not any(map(len, data)) for each in bodies for _, data in each)
                for each, got in zip(variants[:3], bodies, strict=True):
                    assert templates.validate(*each, got) == ""
                for each in variants:
                    assert templates.validate(*each, await answer(client, templates.variant(*each))) == ""

    asyncio.run(body())
    assert not left()


def test_wrong_outputs_are_found_in_shared_memory(url, tmp_path):
    async def body():
        async with Client(url) as client:
            plain = await prepared(client, "add_sub", sources=samples(tmp_path, wrong=True))
            async with in_shared_memory(client, "system", plain, slots=1) as templates:
                got = await answer(client, templates.variant(1, 0))
                assert templates.validate(1, 0, got) == "output 'OUTPUT0'[0, 0]: expected 3.0, got 2.0"

    asyncio.run(body())


def test_copies_in_other_processes_are_the_same_memory(url, tmp_path):
    async def body():
        async with Client(url) as client:
            plain = await prepared(client, "add_sub", sources=samples(tmp_path))
            async with in_shared_memory(client, "system", plain, slots=2) as templates:
                pickled = tmp_path / "templates"
                pickled.write_bytes(pickle.dumps(templates))
                got = await answer(client, templates.variant(1, 1))
                (tmp_path / "body").write_bytes(pickle.dumps(got))
                code = (
                    "import pickle, sys; read = lambda path: pickle.loads(open(path, 'rb').read());"
                    "templates, body = map(read, sys.argv[1:]);"
                    "print([templates.validate(1, slot, body) for slot in range(2)])"
                )
                command = [sys.executable, "-c", code, str(pickled), str(tmp_path / "body")]
                done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
                # Nothing was written to slot 0.
                assert done.stdout.strip() == "[\"output 'OUTPUT0'[0, 0]: expected 2.0, got 0.0\", '']"
                assert left()

    asyncio.run(body())
    assert not left()


def test_strings_fit_their_slots(url, tmp_path):
    path = tmp_path / "data.json"
    path.write_text(
        json.dumps({"data": [{"INPUT0": ["a", "", "long"]}], "validation_data": [{"OUTPUT0": ["a", "", "long"]}]})
    )

    async def body():
        async with Client(url) as client:
            plain = await prepared(client, "strings", sources=(str(path),), output_bytes=100)
            async with in_shared_memory(client, "system", plain, slots=2) as templates:
                assert templates.validate(0, 1, await answer(client, templates.variant(0, 1))) == ""

    asyncio.run(body())


def test_other_regions_stay_registered(url):
    async def body():
        block = SystemBlock("naiad_test_of_another_client", 64)
        async with Client(url) as client:
            await block.register(client)
            try:
                plain = await prepared(client, "add_sub")
                for error in (None, RuntimeError):
                    try:
                        async with in_shared_memory(client, "system", plain, slots=1):
                            assert len(left()) == 2
                            if error:
                                raise error
                    except RuntimeError:
                        assert error
                    assert not left()
                with pytest.raises(InferError, match="already in manager"):
                    await block.register(client)
            finally:
                await block.unregister(client)
                block.close()
            with pytest.raises(InferError, match="empty region name"):
                await client.unregister_system_shared_memory("")

    asyncio.run(body())


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_rejected_registration_leaves_nothing(server, protocol):
    async def body():
        async with Client(url_of(protocol, server)) as client:
            plain = await prepared(client, "add_sub")
            with pytest.raises(InferError, match="--allow-client-shm=true"):
                async with in_shared_memory(client, "system", plain, slots=1):
                    pass

    asyncio.run(body())
    assert not left()


def test_regions_of_a_stopped_server_are_released(models, tmp_path, caplog):
    async def body():
        with serving(tmp_path / "log", f"--model-repository={models}", "--allow-client-shm=true") as server:
            async with Client(url_of("grpc", server)) as client:
                plain = await prepared(client, "add_sub")
                async with in_shared_memory(client, "system", plain, slots=1):
                    await asyncio.to_thread(server.stop)

    asyncio.run(body())
    assert "could not be unregistered" in caplog.text
    assert not left()
