"""Python models whose requests bring the code that they execute, to call other models with."""

import json
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient

from support.model_repository import write_model
from support.server_process import ServerProcess

PRELUDE = '''
import asyncio, gc, json, os, signal, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
background = {}


def call(model, outputs=(), *, decoupled=False, execution_timeout=0, **inputs):
    """Return the response of another model, or an iterator."""
    fields = inputs.pop("fields", {})
    tensors = [pb_utils.Tensor(name, np.asarray(value)) for name, value in inputs.items()]
    fields.update(model_name=model, inputs=tensors, requested_output_names=list(outputs))
    return pb_utils.InferenceRequest(**fields).exec(decoupled=decoupled, execution_timeout=execution_timeout)


def ask(model, outputs=(), *, decoupled=False, **inputs):
    """Return an awaitable."""
    tensors = [pb_utils.Tensor(name, np.asarray(value)) for name, value in inputs.items()]
    asked = pb_utils.InferenceRequest(model_name=model, inputs=tensors, requested_output_names=list(outputs))
    return asked.async_exec(decoupled=decoupled)


def run(model, code, **fields):
    """Have a model of this kind execute code; return what it makes of it."""
    return described(call(model, CODE=np.array([code], object), **fields))


def described(response):
    if response.has_error():
        return {"code": response.error().code().name, "message": response.error().message()}
    found = pb_utils.get_output_tensor_by_name(response, "RESULT")
    return None if found is None else json.loads(found.as_numpy()[0])


def value(response, name):
    if response.has_error():
        raise pb_utils.TritonModelException(response.error().message())
    return pb_utils.get_output_tensor_by_name(response, name).as_numpy()


def sources(requests):
    return [pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy().ravel()[0].decode() for request in requests]


def answer(result):
    text = json.dumps(result).encode()
    return pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", np.array([text], object))])

'''
_TENSORS = (
    'input [ { name: "CODE" data_type: TYPE_STRING dims: [ 1 ] } ]\n'
    'output [ { name: "RESULT" data_type: TYPE_STRING dims: [ 1 ] } ]\n'
)
_PLAIN = """
class TritonPythonModel:
    def execute(self, requests):
        return [answer(self._run(request, source)) for request, source in zip(requests, sources(requests))]

    def _run(self, request, source):
        space = dict(globals(), request=request, result=None)
        exec(source, space)
        return space["result"]
"""
_COROUTINES = """
class TritonPythonModel:
    async def execute(self, requests):
        return [answer(await self._run(request, source)) for request, source in zip(requests, sources(requests))]

    async def _run(self, request, source):
        space = dict(globals(), request=request)
        body = "\\n".join("    " + line for line in source.splitlines())
        exec("async def main():\\n" + body, space)
        return await space["main"]()
"""
_DECOUPLED = """
class TritonPythonModel:
    def execute(self, requests):
        for request, source in zip(requests, sources(requests)):
            exec(source, dict(globals(), request=request, sender=request.get_response_sender()))
"""
_DECOUPLED_COROUTINES = """
class TritonPythonModel:
    async def execute(self, requests):
        await asyncio.gather(*(self._run(*each) for each in zip(requests, sources(requests))))

    async def _run(self, request, source):
        space = dict(globals(), request=request, sender=request.get_response_sender())
        body = "\\n".join("    " + line for line in source.splitlines())
        exec("async def main():\\n" + body, space)
        await space["main"]()
"""


def write_script(
    repository: Path, name: str, *, kind: str = "plain", count: int = 1, group: str = "", extra: str = ""
) -> None:
    """Write a model that executes the code it is sent: `plain`, `coroutines` or either of them `decoupled`.

    `group` is put into its instance group, `extra` into its configuration.
    """
    is_decoupled = kind.startswith("decoupled")
    source = {
        "plain": _PLAIN,
        "coroutines": _COROUTINES,
        "decoupled": _DECOUPLED,
        "decoupled_coroutines": _DECOUPLED_COROUTINES,
    }[kind]
    config = f'backend: "python"\n{_TENSORS}instance_group [ {{ count: {count} kind: KIND_CPU {group} }} ]\n{extra}\n'
    if is_decoupled:
        config += "model_transaction_policy { decoupled: true }\n"
    write_model(repository, name, config, {"1/model.py": PRELUDE + source})


def code_input(code: str) -> "grpcclient.InferInput":
    """Return the input that brings `code`."""
    tensor = grpcclient.InferInput("CODE", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([textwrap.dedent(code).encode()], np.object_))
    return tensor


def run_code(server: ServerProcess, code: str, model: str = "script", **fields: Any) -> Any:
    """Have a model execute `code`, and return its `result`."""
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        found = client.infer(model, [code_input(code)], **fields)
    return json.loads(found.as_numpy("RESULT")[0])
