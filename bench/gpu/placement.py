"""How many GPUs the server finds, and where instances are: with NVML, without its package, with none visible."""

import json
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu.machine import gpus
from bench.gpu.room import NotRun, Room, Served
from bench.gpu.serving import config, python_path, write_model

_WHERE = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.place = f"{args['model_instance_kind']} {args['model_instance_device_id']}".encode()

    def execute(self, requests):
        made = pb_utils.Tensor("Y", np.array([self.place], np.object_))
        return [pb_utils.InferenceResponse([made]) for _ in requests]
"""
_NO_PACKAGE = 'raise ImportError("as if nvidia-ml-py were not installed")\n'
_ABSENT_GPU = 99


def measure(room: Room) -> None:
    """Serve the same models with several sets of visible GPUs."""
    repository = room.work / "models"
    for name, kind in {"auto": "KIND_AUTO", "all": "KIND_GPU", "first": "KIND_GPU", "absent": "KIND_GPU"}.items():
        text = config("python", kind, {"X": ("FP32", (1,))}, {"Y": ("STRING", (1,))})
        listed = {"first": " gpus: [ 0 ]", "absent": f" gpus: [ {_ABSENT_GPU} ]"}.get(name, "")
        write_model(repository, name, text.replace(" gpus: [ 0 ]", listed), {"model.py": _WHERE})
    (room.work / "pynvml.py").write_text(_NO_PACKAGE)
    found = gpus() if room.has_gpu else []
    with room.check("all GPUs"):
        if not found:
            raise NotRun("no GPU")
        _all_visible(room, repository, found)
    with room.check("no visible GPU"), room.serve(repository, name="hidden", CUDA_VISIBLE_DEVICES="") as served:
        _none(room, served)


def _all_visible(room: Room, repository: Path, found: list[dict[str, Any]]) -> None:
    without_package = {"PYTHONPATH": f"{room.work}:{python_path()}"}
    ways: Mapping[str, Mapping[str, str]] = {
        "NVML": {},
        "a UUID": {"CUDA_VISIBLE_DEVICES": found[0]["uuid"]},
        "no package": without_package,
    }
    for way, environment in ways.items():
        count = 1 if way == "a UUID" else len(found)
        with room.check(way), room.serve(repository, name=way.replace(" ", "-"), **environment) as served:
            for model in ("auto", "all", "first"):
                served.load(model)
                expected = [0] if model == "first" else list(range(count))
                listed = _groups(served, model)
                room.judge(f"{way}: {model}", listed == [("KIND_GPU", expected)], groups=str(listed))
            place = served.infer("first", {"X": np.zeros(1, np.float32)})["Y"].tolist()
            room.judge(f"{way}: arguments of the model", place == [b"GPU 0"], found=str(place))
            _refused(room, served, f"{way}: a GPU that does not exist", "absent", str(_ABSENT_GPU))


def _none(room: Room, served: Served) -> None:
    served.load("auto")
    listed = _groups(served, "auto")
    room.judge("no visible GPU: auto", [kind for kind, _ in listed] == ["KIND_CPU"], groups=str(listed))
    _refused(room, served, "no visible GPU: all", "all", "KIND_CPU")


def _groups(served: Served, model: str) -> list[tuple[str, list[int]]]:
    url = f"http://127.0.0.1:{served.running.http_port}/v2/models/{model}/config"
    with urllib.request.urlopen(url, timeout=20) as answer:
        groups = json.load(answer)["instance_group"]
    return [(group["kind"], [int(gpu) for gpu in group.get("gpus", [])]) for group in groups]


def _refused(room: Room, served: Served, check: str, model: str, wanted: str) -> None:
    """Judge that a load fails with a text that names `wanted`."""
    try:
        served.load(model)
    except RuntimeError as error:
        room.judge(check, wanted in str(error), str(error))
    else:
        room.judge(check, False, "it was loaded")
