"""Answers of models of every format on the GPU, beside the framework's own in this process, without tf32."""

import importlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu import networks
from bench.gpu.room import NotRun, Room, Served
from bench.gpu.serving import config, write_model
from naiad.core.tensor import Array

_ROWS = 4
_WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "weather", "is", "good", "bad", "in", "paris", "##s")
_TEXTS = ("the weather is good", "the weather in paris is bad", "bad")
EXACT, CLOSE, XLA = 1e-5, 1e-4, 2e-3
"""Allowed ||found - expected|| / ||expected||: the same kernels, other ones for the same arithmetic, and XLA's, which
may round operands to tf32."""


def measure(room: Room) -> None:
    """Write a model of each format and compare; each that fails has a row."""
    os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
    repository = room.work / "models"
    expected: dict[str, tuple[dict[str, Array], Array, float]] = {}
    for name, make in _MODELS.items():
        if room.is_dry_run and name in _NOT_IN_DRY_RUN:
            continue
        with room.check(f"{name}: made"):
            expected[name] = make(room, repository, name)
    with room.serve(repository, NVIDIA_TF32_OVERRIDE="0") as served:
        for name, (inputs, answer, tolerance) in expected.items():
            with room.check(name):
                compare(room, served, name, inputs, answer, tolerance)


def compare(room: Room, served: Served, name: str, inputs: dict[str, Array], answer: Array, tolerance: float) -> None:
    """Load a model, ask it, and write the row."""
    load_s = served.load(name)
    served.infer(name, inputs)
    found = next(iter(served.infer(name, inputs).values()))  # the second answer is made with other memory
    off = difference(np.asarray(found), answer)
    room.judge(
        name,
        off <= tolerance,
        difference=off,
        allowed=tolerance,
        load_s=round(load_s, 2),
        shape=str(list(answer.shape)),
    )


def difference(found: Array, answer: Array) -> float:
    """Return ||found - answer|| / ||answer||; infinite for other shapes and for NaN."""
    if found.shape != answer.shape:
        return float("inf")
    wide = answer.astype(np.float64)
    off = float(np.linalg.norm(found.astype(np.float64) - wide) / max(float(np.linalg.norm(wide)), 1e-30))
    return off if np.isfinite(off) else float("inf")


# --- PyTorch --------------------------------------------------------------------------------------------------------


def _answer(room: Room, module: Any, tensor: Any) -> Array:
    import torch

    with torch.inference_mode():
        found = module.to(room.device)(tensor.to(room.device))
    answer: Array = found.cpu().numpy()
    if not np.isfinite(answer).all():
        raise RuntimeError("the framework itself answers with NaN")
    return answer


def _image(room: Room) -> Any:
    import torch

    side = room.size(224, 32)
    return torch.randn(_ROWS, 3, side, side, generator=torch.Generator().manual_seed(1))


def _image_config(room: Room, classes: int) -> str:
    side = room.size(224, 32)
    return config(
        "pytorch", room.kind, {"image": ("FP32", (3, side, side))}, {"OUTPUT__0": ("FP32", (classes,))}, rows=8
    )


def _resnet(room: Room) -> Any:
    return networks.module_of(networks.resnet(tiny=room.is_dry_run), room.work, "resnet")


def _resnet_export(room: Room, repository: Path, name: str) -> tuple[dict[str, Array], Array, float]:
    import torch

    module, image = _resnet(room), _image(room)
    rows = torch.export.Dim("rows", min=1, max=8)
    exported = torch.export.export(module, (image,), dynamic_shapes=({0: rows},))
    answer = _answer(room, module, image)
    version = write_model(repository, name, _image_config(room, answer.shape[1]))
    torch.export.save(exported, version / "model.pt2")
    return {"image": image.numpy()}, answer, CLOSE


def _resnet_script(room: Room, repository: Path, name: str) -> tuple[dict[str, Array], Array, float]:
    import torch

    module, image = _resnet(room), _image(room)
    answer = _answer(room, module, image)
    version = write_model(repository, name, _image_config(room, answer.shape[1]))
    torch.jit.trace(module.cpu(), image, strict=False).save(version / "model.pt")
    return {"image": image.numpy()}, answer, CLOSE


def _tokens(room: Room) -> Any:
    import torch

    return torch.randint(0, 500, (_ROWS, room.size(128, 16)), generator=torch.Generator().manual_seed(2))


def _bert_config(room: Room, width: int, length: int = -1) -> str:
    return config(
        "pytorch", room.kind, {"input_ids": ("INT64", (length,))}, {"OUTPUT__0": ("FP32", (width,))}, rows=8
    )


def _bert_module(room: Room, repository: Path, name: str) -> tuple[dict[str, Array], Array, float]:
    source, tokens = networks.bert(tiny=room.is_dry_run), _tokens(room)
    answer = _answer(room, networks.module_of(source, room.work, "bert"), tokens)
    write_model(repository, name, _bert_config(room, answer.shape[1]), {"model.py": source})
    return {"input_ids": tokens.numpy()}, answer, EXACT


def _bert_export(room: Room, repository: Path, name: str) -> tuple[dict[str, Array], Array, float]:
    import torch

    tokens = _tokens(room)
    module = networks.module_of(networks.bert(tiny=room.is_dry_run), room.work, "bert")
    exported = torch.export.export(module, (tokens,), strict=False)
    answer = _answer(room, module, tokens)
    text = config(
        "pytorch", room.kind, {"input_ids": ("INT64", tuple(tokens.shape))}, {"OUTPUT__0": ("FP32", answer.shape)}
    )
    torch.export.save(exported, write_model(repository, name, text) / "model.pt2")
    return {"input_ids": tokens.numpy()}, answer, CLOSE


# --- Hugging Face, JAX ----------------------------------------------------------------------------------------------


def _hugging_face(room: Room, repository: Path, name: str) -> tuple[dict[str, Array], Array, float]:
    import torch
    import transformers
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordPiece({word: number for number, word in enumerate(_WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    text = config("huggingface", room.kind, {"text": ("STRING", (1,))}, {"embedding": ("FP32", (-1,))}, rows=8)
    version = write_model(repository, name, text)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_max_length=32
    )
    fast.save_pretrained(version)
    torch.manual_seed(3)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    settings = transformers.BertConfig(vocab_size=len(_WORDS), **room.size({}, sizes))
    model = transformers.BertModel(settings).eval()
    model.save_pretrained(version)
    tokens = fast(list(_TEXTS), padding=True, return_tensors="pt").to(room.device)
    with torch.inference_mode():
        states = model.to(room.device)(
            input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]
        ).last_hidden_state
        mask = tokens["attention_mask"][..., None].to(states.dtype)
        answer = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=1).cpu().numpy()
    return {"text": np.array([[each.encode()] for each in _TEXTS], np.object_)}, answer, CLOSE


def _jax(room: Room, repository: Path, name: str) -> tuple[dict[str, Array], Array, float]:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax
    import jax.numpy as jnp
    from jax import export

    if room.has_gpu and not any(device.platform == "gpu" for device in jax.devices()):
        raise NotRun("JAX finds no GPU")
    width = room.size(1024, 16)
    random = np.random.default_rng(4)
    first, second = (random.standard_normal((width, width), np.float32) / width**0.5 for _ in range(2))

    def function(x: Any) -> Any:
        return {"Y": jax.nn.gelu(jnp.matmul(x, first, precision="highest")) @ second}

    shape = jax.ShapeDtypeStruct(export.symbolic_shape(f"b, {width}"), np.float32)
    platforms = ("cuda", "cpu") if room.has_gpu else ("cpu",)
    content = bytes(export.export(jax.jit(function), platforms=platforms)(shape).serialize())
    text = config("jax", room.kind, {"input_0": ("FP32", (width,))}, {"Y": ("FP32", (width,))}, rows=8)
    write_model(repository, name, text, {"model.jaxexport": content})
    rows = random.standard_normal((_ROWS, width), np.float32)
    return {"input_0": rows}, np.asarray(jax.jit(function)(rows)["Y"]), XLA


# --- Python models --------------------------------------------------------------------------------------------------


def _python_config(room: Room) -> str:
    return config("python", room.kind, {"X": ("FP32", (64,))}, {"Y": ("FP32", (64,))}, rows=8)


def _torch_model(result: str) -> Any:
    def make(room: Room, repository: Path, name: str) -> tuple[dict[str, Array], Array, float]:
        import torch

        source = networks.TORCH_PY.replace("RESULT", result)
        write_model(repository, name, _python_config(room), {"model.py": source})
        torch.manual_seed(0)
        weights = torch.randn(64, 64).to(room.device)
        rows = torch.randn(_ROWS, 64)
        return {"X": rows.numpy()}, torch.relu(rows.to(room.device) @ weights).cpu().numpy(), CLOSE

    return make


def _cupy_model(room: Room, repository: Path, name: str) -> tuple[dict[str, Array], Array, float]:
    if not room.has_gpu:
        raise NotRun("CuPy needs a GPU")
    cupy: Any = importlib.import_module("cupy")
    rows = np.random.default_rng(5).standard_normal((_ROWS, 64), np.float32)
    write_model(repository, name, _python_config(room), {"model.py": networks.CUPY_PY})
    device = cupy.asarray(rows)
    return {"X": rows}, cupy.asnumpy(cupy.sqrt(device * device + 1)), EXACT


_NOT_IN_DRY_RUN = ("python_torch_numpy", "python_torch_capsule")
"""On a CPU they are the same as python_torch_dlpack, and each starts a process with PyTorch."""
_MODELS = {
    "resnet50_export": _resnet_export,
    "resnet50_torchscript": _resnet_script,
    "bert_module": _bert_module,
    "bert_export": _bert_export,
    "bert_huggingface": _hugging_face,
    "jax_function": _jax,
    "python_torch_numpy": _torch_model('pb_utils.Tensor("Y", y.cpu().numpy())'),
    "python_torch_dlpack": _torch_model('pb_utils.Tensor.from_dlpack("Y", y)'),
    "python_torch_capsule": _torch_model('pb_utils.Tensor.from_dlpack("Y", torch.utils.dlpack.to_dlpack(y))'),
    "python_cupy": _cupy_model,
}
