"""The registered regions by name. Every method runs on the event loop."""

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from naiad.core.errors import ErrorCode, InferError, excerpt, invalid_argument, not_found, unavailable, unsupported
from naiad.core.model import CudaRegionStatus, SystemRegionStatus
from naiad.core.request import SharedMemoryRegion
from naiad.engine.regions.posix_memory import DIRECTORY, SystemRegion

if TYPE_CHECKING:
    from naiad.backend.cuda.cuda import CudaRegion, CudaRuntime

_log = logging.getLogger(__name__)

Region: TypeAlias = "SystemRegion | CudaRegion"
"""What is not a `SystemRegion` is on a GPU: most servers never import how that works."""
_R = TypeVar("_R", SystemRegion, "CudaRegion")

MAX_REGIONS = 1024
"""Default of --max-shared-memory-regions."""
_MAX_NAME_CHARACTERS = 1024


class SharedMemory:
    """Registers and unregisters regions, reports their status, and provides parts of them to requests.

    Names are unique across system and CUDA regions. A region that is unregistered while requests use it stays listed
    until the last of them has ended; new requests cannot use it.
    """

    def __init__(
        self,
        *,
        is_allowed: bool = False,
        max_regions: int = MAX_REGIONS,
        directory: str = DIRECTORY,
        runtime: "Callable[[], CudaRuntime] | None" = None,
    ) -> None:
        """`is_allowed`: clients may register; `runtime` loads the CUDA runtime, or another one, or raises CudaError.

        `directory` contains the POSIX shared-memory objects.
        """
        self._is_allowed = is_allowed
        self._max_regions = max_regions
        self._directory = directory
        self._load_runtime = runtime
        self._runtime: CudaRuntime | None = None
        self._regions: dict[str, Region] = {}

    # --- control --------------------------------------------------------------------------------------------------

    def register_system(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Register a part of a POSIX shared-memory object. Raises InferError with Triton's codes and texts."""
        self._check_new(name)
        self._regions[name] = SystemRegion(name, key, offset, byte_size, self._directory)
        _log.debug("registered system shared memory region '%s': '%s', %d, %d", name, key, offset, byte_size)

    def register_cuda(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        """Register an allocation of a GPU. Raises InferError with Triton's codes and texts."""
        self._check_new(name)
        from naiad.backend.cuda.cuda import CudaError, CudaRegion, load_runtime

        if self._runtime is None:
            try:
                self._runtime = (self._load_runtime or load_runtime)()
            except CudaError as error:
                raise invalid_argument(
                    f"failed to register CUDA shared memory region: '{excerpt(name)}', GPUs not supported: {error}"
                ) from error
        self._regions[name] = CudaRegion(self._runtime, name, handle, device_id, byte_size)
        _log.debug("registered CUDA shared memory region '%s': GPU %d, %d", name, device_id, byte_size)

    def unregister_system(self, name: str = "") -> None:
        """Unregister a system region, or all of them. Triton: an unknown name is not an error."""
        self._unregister(name, SystemRegion)

    def unregister_cuda(self, name: str = "") -> None:
        """Unregister a CUDA region, or all of them. Triton: an unknown name is not an error."""
        from naiad.backend.cuda.cuda import CudaRegion

        self._unregister(name, CudaRegion)

    def system_status(self, name: str = "") -> Sequence[SystemRegionStatus]:
        """Return one system region or all, by name. Raises InferError(NOT_FOUND)."""
        return [region.status for region in self._find(name, SystemRegion, "system")]

    def cuda_status(self, name: str = "") -> Sequence[CudaRegionStatus]:
        """Return one CUDA region or all, by name. Raises InferError(NOT_FOUND)."""
        from naiad.backend.cuda.cuda import CudaRegion

        return [region.status for region in self._find(name, CudaRegion, "cuda")]

    def _check_new(self, name: str) -> None:
        if not self._is_allowed:
            raise unsupported(
                "Client shared memory is disabled; start the server with --allow-client-shm=true if all its clients "
                "are trusted with the shared memory of its machine"
            )
        if not 0 < len(name) <= _MAX_NAME_CHARACTERS:
            raise invalid_argument(
                f"a shared memory region needs a name of 1 to {_MAX_NAME_CHARACTERS} characters, got {len(name)}"
            )
        if name in self._regions:
            raise InferError(ErrorCode.ALREADY_EXISTS, f"shared memory region '{excerpt(name)}' already in manager")
        if len(self._regions) >= self._max_regions:
            raise unavailable(
                f"failed to register shared memory region '{excerpt(name)}': {self._max_regions} regions are "
                "registered, "
                "which is the limit; unregister some or raise --max-shared-memory-regions"
            )

    def _unregister(self, name: str, kind: "type[SystemRegion] | type[CudaRegion]") -> None:
        if not self._is_allowed:
            raise unsupported(
                "Client shared memory is disabled, so that nothing is registered; --allow-client-shm=true enables it"
            )
        chosen = list(self._regions.values()) if not name else [r for r in (self._regions.get(name),) if r]
        for region in chosen:
            if isinstance(region, kind):
                region.is_leaving = True
                if not region.user_count:
                    self._remove(region)

    def _find(self, name: str, kind: type[_R], word: str) -> list[_R]:
        if not name:
            found = [region for region in self._regions.values() if isinstance(region, kind)]
            return sorted(found, key=lambda region: region.name)
        region = self._regions.get(name)
        if region is None:
            raise not_found(f"Unable to find {word} shared memory region: '{excerpt(name)}'")
        if not isinstance(region, kind):
            actual, wanted = ("system", "CUDA") if isinstance(region, SystemRegion) else ("CUDA", "system")
            raise not_found(
                f"The region named '{excerpt(name)}' is registered as {actual} shared memory, not {wanted} shared "
                "memory"
            )
        return [region]

    def _remove(self, region: Region) -> None:
        del self._regions[region.name]
        if isinstance(region, SystemRegion):
            region.close()
            return
        from naiad.backend.cuda.cuda import CudaError

        try:
            region.close()
        except CudaError as error:
            _log.warning("closing CUDA shared memory region '%s' failed: %s", region.name, error)

    # --- use by requests ------------------------------------------------------------------------------------------

    def acquire(self, part: SharedMemoryRegion) -> Region:
        """Return the region of a part that a request uses; `release` must follow. Raises InferError."""
        region = self._regions.get(part.name)
        if region is None or region.is_leaving:
            raise not_found(f"Unable to find shared memory region: '{excerpt(part.name)}'")
        size = region.byte_size
        if not 0 <= part.offset < size:
            raise invalid_argument(
                f"Invalid offset for shared memory region: '{excerpt(part.name)}': offset {part.offset} is beyond "
                f"its {size} "
                "bytes"
            )
        if not 0 < part.byte_size <= size - part.offset:
            raise invalid_argument(
                f"Invalid offset + byte size for shared memory region: '{excerpt(part.name)}': offset "
                f"{part.offset} + byte "
                f"size {part.byte_size} must end within its {size} bytes, and not be empty"
            )
        region.check_alive()
        region.user_count += 1
        return region

    def release(self, regions: Sequence[Region]) -> None:
        """End the use of regions, once for every `acquire`."""
        for region in regions:
            region.user_count -= 1
            if region.is_leaving and not region.user_count:
                self._remove(region)
