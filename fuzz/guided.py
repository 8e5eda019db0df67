"""The same targets under atheris, which looks for inputs that reach new code. Optional: `pip install atheris`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(include=["naiad"]):
    from fuzz.targets import TARGETS

_MIB_LIMIT = 2048


def main(arguments: Sequence[str]) -> None:
    """Run a target: name, seconds, seed, directory of new inputs, directory of findings. Does not return."""
    name, seconds, seed, found, findings = arguments
    target = TARGETS[name]
    Path(found).mkdir(parents=True, exist_ok=True)
    Path(findings).mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(target.corpus()):
        Path(found, f"seed-{number}").write_bytes(data)

    def check(data: bytes) -> None:
        target.check(data)

    def mutate(data: bytes, max_bytes: int, mutation_seed: int) -> bytes:
        random = Random(mutation_seed)
        if random.random() < 0.3:
            return bytes(atheris.Mutate(data, max_bytes))
        return target.mutate(data, random)[:max_bytes]

    flags = [
        f"-max_total_time={seconds}",
        f"-seed={int(seed) + 1}",
        f"-max_len={target.max_bytes}",
        "-timeout=10",
        f"-rss_limit_mb={_MIB_LIMIT}",
        f"-artifact_prefix={findings}/",
        "-verbosity=0",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *flags, found], check, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
