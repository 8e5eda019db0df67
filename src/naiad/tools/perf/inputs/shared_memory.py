"""Requests whose tensors are in shared memory: inputs are written once, and each outstanding request has its outputs.

A model has two regions on the server, one with the inputs of all templates and one with the outputs of all slots.
Regions of other clients are not touched.
"""

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from naiad.client import Client, InferError
from naiad.core.request import SharedMemoryRegion
from naiad.tools.perf.inputs.memory_blocks import (
    CudaBlock,
    MemoryBlock,
    OutputSlots,
    SystemBlock,
    aligned,
    new_region_name,
    with_memory,
)
from naiad.tools.perf.inputs.templates import TemplateSet
from naiad.tools.perf.perf_exchange import RequestTemplate
from naiad.tools.values.tensor import InputError

_log = logging.getLogger(__name__)

_KINDS: dict[str, type[SystemBlock] | type[CudaBlock]] = {"system": SystemBlock, "cuda": CudaBlock}


@asynccontextmanager
async def in_shared_memory(
    client: Client, kind: str, prepared: TemplateSet, slots: int
) -> AsyncIterator[TemplateSet]:
    """Yield the templates with their tensors in shared memory, `system` or `cuda`.

    `slots` is the number of requests that are outstanding at once. At the end the regions are unregistered and the
    memory is released. Raises InputError, and InferError if the server rejects a region.
    """
    if kind not in _KINDS:
        raise InputError(f"--shared-memory {kind}: expected none, system or cuda")
    async with AsyncExitStack() as stack:
        places, input_bytes = _places(prepared.templates)
        region = new_region_name("inputs")
        if input_bytes:
            block = await _registered(stack, client, _KINDS[kind](region, input_bytes))
            for template, offsets in zip(prepared.templates, places, strict=True):
                for index, offset in offsets.items():
                    block.write(offset, template.data[index])
        outputs = OutputSlots(prepared.output_bytes, slots)
        if outputs.byte_size:
            outputs.block = await _registered(
                stack, client, _KINDS[kind](new_region_name("outputs"), outputs.byte_size)
            )
        templates = [_shared(*pair, region) for pair in zip(prepared.templates, places, strict=True)]
        yield replace(prepared, templates=templates, outputs=outputs)


async def _registered(stack: AsyncExitStack, client: Client, block: MemoryBlock) -> MemoryBlock:
    stack.callback(block.close)
    await block.register(client)
    stack.push_async_callback(_unregister, client, block)
    return block


async def _unregister(client: Client, block: MemoryBlock) -> None:
    try:
        await block.unregister(client)
    except InferError as error:
        # The server is gone, and its regions with it; the result of the run stands.
        _log.warning("shared memory region '%s' could not be unregistered: %s", block.name, error)


def _places(templates: Sequence[RequestTemplate]) -> tuple[list[dict[int, int]], int]:
    """Return the offset of each input of each template by index, and the bytes of all. Empty inputs have no place."""
    places: list[dict[int, int]] = []
    position = 0
    for template in templates:
        offsets: dict[int, int] = {}
        for index, data in enumerate(template.data):
            if len(data):
                offsets[index] = position
                position += aligned(len(data))
        places.append(offsets)
    return places, position


def _shared(template: RequestTemplate, offsets: Mapping[int, int], region: str) -> RequestTemplate:
    header = template.header
    regions = {
        header.inputs[index].name: SharedMemoryRegion(region, offset, len(template.data[index]))
        for index, offset in offsets.items()
    }
    header = with_memory(header, regions, header.outputs)
    return replace(template, header=header, data=[b""] * len(template.data))
