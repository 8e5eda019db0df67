"""The process of a Python model, as the model sees it: that of Triton's embedded interpreter."""

import json
import os
import signal
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naiad.backend.api import InstanceSpec
from naiad.backend.python.backend import PythonBackend
from naiad.backend.workers.worker_instance import WorkerInstance
from naiad.config.model_config_pb2 import ModelConfig
from support.backend_parts import infer, make_context

SOURCE = """
import argparse, json, multiprocessing, os, signal, subprocess, sys
from concurrent.futures import ProcessPoolExecutor
import numpy as np
import triton_python_backend_utils as pb_utils

parsed = argparse.ArgumentParser().parse_args()
at_import = {"argv": sys.argv, "orig_argv": getattr(sys, "orig_argv", []), "parsed": vars(parsed)}


def double(number):
    return 2 * number


def names(_):
    return sys.modules["__main__"].__name__, getattr(sys.modules["__main__"], "__file__", None)


def sleep():
    signal.pause()


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            expression = bytes(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0]).decode()
            result = json.dumps(eval(expression))
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([result], object))]))
        return answers

    def ended(self, process):
        process.start()
        process.terminate()
        process.join(30)
        return process.exitcode
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerInstance]:
    directory: Path = tmp_path_factory.mktemp("models") / "m"
    (directory / "1").mkdir(parents=True)
    (directory / "1" / "model.py").write_text(textwrap.dedent(SOURCE))
    config = ModelConfig(name="m", backend="python")
    config.input.add(name="IN", data_type="TYPE_STRING", dims=[1])
    config.output.add(name="OUT", data_type="TYPE_STRING", dims=[1])
    instance = PythonBackend().load(make_context(config, directory)).create_instance(InstanceSpec("m", 0, "KIND_CPU"))
    assert isinstance(instance, WorkerInstance)
    yield instance
    instance.close()


def ask(model: WorkerInstance, expression: str) -> Any:
    return json.loads(infer(model, {"IN": np.array([expression.encode()], object)})["OUT"][0])


def test_arguments_are_empty_as_when_embedded(model):
    assert ask(model, "at_import") == {"argv": [""], "orig_argv": [], "parsed": {}}


def test_main_module_is_empty(model):
    assert ask(model, "names(0)") == ["__main__", None]
    assert ask(model, "[n for n in vars(sys.modules['__main__']) if not n.startswith('__')]") == []


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_processes_of_every_start_method_work(model, method):
    pool = f"ProcessPoolExecutor(2, multiprocessing.get_context({method!r}))"
    assert ask(model, f"list({pool}.map(double, range(3)))") == [0, 2, 4]


def test_stdin_is_at_its_end(model):
    assert ask(model, "sys.stdin.read()") == ""
    assert ask(model, "os.getcwd()") == os.getcwd()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_worker_outlasts_signals_of_a_service_manager(model, number):
    pid = ask(model, "os.getpid()")
    os.kill(pid, number)
    assert ask(model, "os.getpid()") == pid
    # Sent while it executes, too.
    assert ask(model, f"[os.kill(os.getpid(), {int(number)}), os.getpid()]") == [None, pid]


def test_programs_of_a_model_end_on_signals(model):
    for number in (signal.SIGINT, signal.SIGTERM):
        program = "subprocess.Popen(['sleep', '60'])"
        sent = f"(lambda p: (p.send_signal({int(number)}), p.wait(30))[1])({program})"
        assert ask(model, sent) == -number
    for method in ("fork", "spawn"):
        process = f"multiprocessing.get_context({method!r}).Process(target=sleep)"
        assert ask(model, f"self.ended({process})") == -signal.SIGTERM
