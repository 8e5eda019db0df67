"""The parts in the order of their worth: what each is about, how long it may take, what it needs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """A part; its function `measure(room)` is in its module."""

    name: str
    title: str
    limit_s: float
    module: str
    needs_gpu: bool = True
    """Without a GPU it is not run, unless with --rehearse."""
    free_gib: float = 2.0
    """Free memory of the GPU below which it is not run."""
    by_default: bool = True
    least_s: float = 8.0
    """With less time left it is not begun."""


_EQUAL = "answers of models on the GPU equal the framework's own"
PARTS = (
    Part("throughput", "a server beside a bare loop of PyTorch", 170, "bench.gpu.throughput", free_gib=16),
    Part("transfers", "CUDA shared memory beside HTTP, gRPC and system shared memory", 45, "bench.gpu.transfers"),
    Part("ranks", "collective operations of ranks over nccl", 40, "bench.gpu.ranks"),
    Part("device", "tensors of an ensemble stay on the GPU", 45, "bench.gpu.on_device", least_s=15),
    Part("correctness", _EQUAL, 110, "bench.gpu.correctness", least_s=85),
    Part("memory", "memory comes back after unload and death", 70, "bench.gpu.memory", free_gib=12, least_s=25),
    Part("budget", "models on demand stay in the budget of a GPU", 60, "bench.gpu.budget", free_gib=8, least_s=25),
    Part("metrics", "nv_gpu_* equal nvidia-ml-py's figures", 30, "bench.gpu.metrics", least_s=12),
    Part("placement", "GPUs are counted, and instances are on them", 60, "bench.gpu.placement", least_s=15),
    Part("cores", "a tiny ONNX model on 1, 2, 4, 8 processes", 95, "bench.gpu.cores", needs_gpu=False, least_s=75),
    Part("aot", "an AOTInductor package compiled for the GPU", 300, "bench.gpu.aot", least_s=30),
    Part("optimize", "naiad optimize with lower precision", 150, "bench.gpu.optimizing", least_s=30),
    Part("tensorrt", "the TensorRT backend: written, never run", 120, "bench.gpu.other_runtimes", by_default=False),
    Part(
        "onnxruntime", "ONNX Runtime for CUDA: written, never run", 60, "bench.gpu.other_runtimes", by_default=False
    ),
)
BY_NAME = {part.name: part for part in PARTS}


def chosen(names: str) -> list[Part]:
    """Return the parts of a list of names, all by default. Raises ValueError for an unknown one."""
    if not names:
        return [part for part in PARTS if part.by_default]
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in BY_NAME]
    if unknown or not wanted:
        raise ValueError(
            f"--parts '{names}': there is no part '{', '.join(unknown)}'; choose from {', '.join(BY_NAME)}"
        )
    return [part for part in PARTS if part.name in wanted]
