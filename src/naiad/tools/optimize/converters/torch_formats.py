"""To TorchScript, torch.export and AOTInductor."""

from pathlib import Path
from typing import Any

from naiad.tools.optimize.converters.conversion_job import ConversionJob


def convert(job: ConversionJob) -> None:
    """Write model.pt or model.pt2."""
    import torch

    if job.format == "torchscript":
        with torch.no_grad():
            torch.jit.trace(load(job), arguments(job)).save(str(Path(job.output, "model.pt")))
        return
    if job.source_format == "torch_export":
        program = torch.export.load(job.source)
    else:
        program = torch.export.export(load(job), arguments(job), dynamic_shapes=dynamic_shapes(job))
    target = str(Path(job.output, "model.pt2"))
    if job.format == "torch_export":
        torch.export.save(program, target)
    else:
        options = {"max_autotune": True} if job.settings.get("max_autotune") else None
        torch._inductor.aoti_compile_and_package(program, package_path=target, inductor_configs=options)


def load(job: ConversionJob) -> Any:
    """Return the module, for inference: pickled by `torch.save`, or TorchScript."""
    import torch

    if job.source_format == "torchscript":
        return torch.jit.load(job.source, map_location="cpu").eval()
    return torch.load(job.source, map_location="cpu", weights_only=False).eval()


def arguments(job: ConversionJob) -> tuple[Any, ...]:
    """Return a sample as arguments of `forward`, in the order of the inputs."""
    import torch

    example = job.example()
    names = [each.name for each in job.inputs] or list(example)
    return tuple(torch.from_numpy(example[name].copy()) for name in names)


def dynamic_shapes(job: ConversionJob) -> tuple[dict[int, Any], ...] | None:
    """Return the axes that vary; the lengths in the samples are no bounds, except that of the batch."""
    import torch

    shapes = []
    for each in job.inputs:
        axes = dict.fromkeys(job.dynamic_axes(each.name), torch.export.Dim.AUTO)
        if job.has_batch and 0 in axes:
            axes[0] = torch.export.Dim("batch", min=1)
        shapes.append(axes)
    return tuple(shapes) if any(shapes) else None
