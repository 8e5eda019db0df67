"""The command line of the attack suite.

python -m attack                                every attack, over every protocol
python -m attack rapid_reset ping_flood         some of them
python -m attack --short --protocol grpc        a tenth of the work, over gRPC only
python -m attack --with-keys                    against a server with API keys, without a key

Each attack is a bounded loop against a server of its own on loopback, beside a probe that plays its other clients.
The table says what it cost; the exit status is 1 when a limit was exceeded. Response times mean something only on a
machine that does nothing else, CPU seconds and memory everywhere.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import attack.attacks  # noqa: F401 - registers them
from attack.registry import ATTACKS, PROTOCOLS, Attack
from attack.runner import Outcome, campaign
from attack.server import write_repository

_COLUMNS = (
    f"{'attack':24} {'over':6} {'keys':4} {'sent KB':>8} {'CPU s':>7} {'ns/byte':>8} {'peak MiB':>8} {'kept MiB':>8} "
    f"{'files':>5} {'block ms':>8} {'p99 ms':>7} {'max ms':>7}"
)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m attack", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[*ATTACKS, []], metavar="attack", help=", ".join(ATTACKS))
    parser.add_argument("--short", action="store_true", help="a tenth of the work, generous limits: for CI")
    parser.add_argument("--protocol", default=",".join(PROTOCOLS), help="http1, http2 (REST), grpc; default: all")
    parser.add_argument("--with-keys", action="store_true", help="the server has API keys, the attacker none")
    parser.add_argument("--list", action="store_true", help="list the attacks and end")
    arguments = parser.parse_args(argv)
    arguments.protocols = arguments.protocol.split(",")
    unknown = set(arguments.protocols) - set(PROTOCOLS)
    if unknown:
        parser.error(f"--protocol: unknown {', '.join(sorted(unknown))}; expected some of {', '.join(PROTOCOLS)}")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is asked for; 1 when a limit was exceeded."""
    arguments = _arguments(argv)
    attacks = [ATTACKS[name] for name in arguments.names or ATTACKS]
    if arguments.list:
        for each in attacks:
            print(f"{each.name:24} {','.join(each.protocols):18} {each.what}")
        return 0
    failed = 0
    with tempfile.TemporaryDirectory(prefix="attack-") as folder:
        work = Path(folder)
        write_repository(work / "models")
        print(_COLUMNS, flush=True)
        with campaign(work / "models", work, has_keys=arguments.with_keys, is_short=arguments.short) as running:
            for each, protocol in _combinations(attacks, arguments.protocols):
                try:
                    outcome = running.run(each, protocol)
                except RuntimeError as error:
                    failed += 1
                    print(f"{each.name:24} {protocol:6} FAILED: {error}", flush=True)
                    continue
                failed += bool(outcome.problems)
                print(_row(outcome), flush=True)
    if failed:
        print(f"{failed} attacks exceeded a limit", file=sys.stderr)
    return int(bool(failed))


def _combinations(attacks: Sequence[Attack], protocols: Sequence[str]) -> Iterable[tuple[Attack, str]]:
    return [(each, protocol) for each in attacks for protocol in each.protocols if protocol in protocols]


def _row(outcome: Outcome) -> str:
    row = (
        f"{outcome.attack.name:24} {outcome.protocol:6} {'yes' if outcome.has_keys else 'no':4} "
        f"{outcome.sent_bytes / 1000:8.0f} {outcome.cpu_s:7.2f} {outcome.ns_per_byte:8.0f} {outcome.peak_mib:8.1f} "
        f"{outcome.kept_mib:8.1f} {outcome.open_files:5d} {outcome.block_ms:8.1f} {outcome.p99_ms:7.1f} "
        f"{outcome.longest_ms:7.1f}"
    )
    return "\n".join((row, *(f"    EXCEEDED {problem}" for problem in outcome.problems)))


if __name__ == "__main__":
    sys.exit(main())
