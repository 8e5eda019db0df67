"""Searches over two identical configurations, which are a tie.

    python -m bench.analyze_ties [--model busy] [--searches 20] [--seconds 0.5] [--concurrency 4]

The variant sets `instance_group.count` to the count that the model has. Prints how many searches report a tie.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from bench.models import write_repository
from naiad.tools.analyze.goal import Goal
from naiad.tools.analyze.live import LiveInstrument, OwnServer
from naiad.tools.analyze.search import SearchSettings, search
from naiad.tools.analyze.space import Space
from naiad.tools.analyze.variants import listed
from naiad.tools.perf.plan import ModelLoad


async def count_ties(arguments: argparse.Namespace) -> int:
    """Search again and again on one server; return the number of ties."""
    model, ties = arguments.model, 0
    with tempfile.TemporaryDirectory() as directory:
        write_repository(Path(directory), [model])
        async with LiveInstrument(OwnServer([Path(directory)]), [ModelLoad(model)]) as instrument:
            config = instrument.configs[model]
            (count,) = (group.count for group in config.instance_group)
            variants = listed(config, [{"instance_group.count": count}]).all
            space = Space((model,), (), (arguments.concurrency,), variants={model: variants})
            settings = SearchSettings(seconds=arguments.seconds)
            for number in range(1, arguments.searches + 1):
                ranking = await search("brute", space, {model: Goal()}, instrument, settings)
                is_tie = len(ranking.candidates) == 2 and ranking.candidates[1].is_tie
                ties += is_tie
                values = [each.measured.metrics[model]["perf_throughput"].value for each in ranking.candidates]
                print(f"{number}: {'/s, '.join(f'{value:.0f}' for value in values)}/s tie: {is_tie}", flush=True)
    return ties


def main() -> int:
    """Count and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="busy")
    parser.add_argument("--searches", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--concurrency", type=int, default=4)
    arguments = parser.parse_args()
    ties = asyncio.run(count_ties(arguments))
    print(f"{ties} of {arguments.searches} searches reported a tie")
    return 0


if __name__ == "__main__":
    sys.exit(main())
