"""Limits of one load of a model: what its configuration may make the server allocate, start and wait for."""

from dataclasses import dataclass, replace

from naiad.options.flag import option

_MIN_BYTES = 256 << 20
_MAX_BYTES = 2 << 30
_BYTES_SHARE = 8
_PROCESS_BYTES = 128 << 20
"""What a worker process takes at least, with numpy and a small model."""


@dataclass(frozen=True, slots=True)
class LoadLimitOptions:
    """The limits; 0 where they follow from the cores and the memory of the machine or control group."""

    max_bytes: int = option(
        0,
        "max-load-bytes",
        "naiad: maximum of bytes that the configuration of a model makes the server allocate: warm-up samples, "
        "initial states, padded batches. 0: an eighth of the memory, from 256 MiB to 2 GiB.",
        minimum=0,
    )
    max_instances: int = option(
        0,
        "max-load-instances",
        "naiad: maximum of instances of a model, over all its versions. 0: 16 for each core, at least 128.",
        minimum=0,
    )
    max_processes: int = option(
        0,
        "max-load-processes",
        "naiad: maximum of worker processes of a model, over all its versions. 0: 16 for each core, at least 32, "
        "with 128 MiB of memory for each.",
        minimum=0,
    )
    max_threads: int = option(
        0,
        "max-load-threads",
        "naiad: maximum of threads that the parameters of a model ask for, over all its instances. 0: 32 for each "
        "core, at least 512.",
        minimum=0,
    )
    max_ensemble_steps: int = option(
        256, "max-load-ensemble-steps", "naiad: maximum of steps of an ensemble.", minimum=1
    )
    max_sequences: int = option(
        65536,
        "max-load-sequences",
        "naiad: maximum of sequences that a model has room for at the same time, over all its instances.",
        minimum=1,
    )
    max_warm_ups: int = option(
        100_000, "max-load-warmups", "naiad: maximum of warm-up executions of an instance.", minimum=1
    )
    max_buckets: int = option(
        256, "max-load-histogram-buckets", "naiad: maximum of buckets of all histograms of a model.", minimum=1
    )
    max_s: float = option(
        3600.0,
        "max-load-seconds",
        "naiad: seconds after which a load of a model fails that has not ended. 0: no limit.",
        minimum=0,
    )

    def resolved(self, *, memory_bytes: int, cores: int) -> "LoadLimitOptions":
        """Return the limits with numbers in place of 0, for a machine with this memory and these cores."""
        share_bytes = min(max(memory_bytes // _BYTES_SHARE, _MIN_BYTES), _MAX_BYTES)
        room = max(4, memory_bytes // _PROCESS_BYTES)
        return replace(
            self,
            max_bytes=self.max_bytes or share_bytes,
            max_instances=self.max_instances or max(128, 16 * cores),
            max_processes=self.max_processes or min(max(32, 16 * cores), room),
            max_threads=self.max_threads or max(512, 32 * cores),
        )
