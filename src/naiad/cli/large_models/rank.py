"""`naiad rank`: the ranks of a model on a further machine."""

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path

from naiad.backend.api import ModelContext
from naiad.backend.cores import usable_cores
from naiad.backend.registry import BackendRegistry
from naiad.backend.workers.ranks.rendezvous import NodeRanks, RejectedError
from naiad.backend.workers.worker_model import WorkerModel
from naiad.cli.parser import Parser, fail
from naiad.cli.sources import NoModelError, find_models
from naiad.core.errors import InferError

_DESCRIPTION = """\
Run the ranks of the model in DIRECTORY that belong to this machine. They join the group of the server of node 0 at
the model's parameter 'rendezvous', and again after every restart. The command runs until it is interrupted.
The exit status is 1 if the model cannot have ranks here or the server rejects them, 2 for an invalid command line.
"""


def run(argv: Sequence[str]) -> int:
    """Serve ranks and return the exit status."""
    options = make_parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        context = _context_of(options.directory.absolute())
        # Loading reads the settings; instances would start workers.
        model = BackendRegistry().get_for(context.config, context.name).load(context)
        nnodes = model.settings.nnodes if isinstance(model, WorkerModel) else 1
        if not isinstance(model, WorkerModel) or not 0 < options.node_rank < nnodes:
            return fail(
                "naiad rank",
                f"--node-rank is {options.node_rank}, and model '{context.name}' has {nnodes} nodes (parameter "
                "'nnodes'); use 1 to nnodes - 1: node 0 is the server",
            )
        NodeRanks(context, model.settings, options.node_rank).run()
    except InferError as error:
        return fail("naiad rank", error.message)
    except (NoModelError, RejectedError) as error:
        return fail("naiad rank", error)
    return 0


def _context_of(directory: Path) -> ModelContext:
    """Return the latest version of a model. Raises NoModelError."""
    if not directory.is_dir():
        raise NoModelError(f"{directory}: no such directory; name the model's, as in naiad rank models/llm")
    report = find_models(directory.parent, directory.name)[directory.name]
    version = max(report.versions, default=1)
    return ModelContext(
        name=report.name,
        version=version,
        config=report.config,
        model_dir=directory,
        version_dir=directory / str(version),
        usable_cores=usable_cores(),
    )


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the verb's arguments."""
    parser = Parser(
        prog="naiad rank", description=_DESCRIPTION, epilog="example: naiad rank models/llm --node-rank 1"
    )
    parser.add_argument("directory", type=Path, metavar="DIRECTORY", help="the model's directory, with config.pbtxt")
    parser.add_argument(
        "--node-rank", type=int, required=True, metavar="N", help="number of this machine, from 1 to nnodes - 1"
    )
    return parser
