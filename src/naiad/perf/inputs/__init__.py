"""What requests carry: random data, data files, recorded traffic; shared memory; and how outputs are validated."""

from naiad.perf.inputs.replay import Replay, ReplayedRequest, replay_inputs
from naiad.perf.inputs.shared_memory import in_shared_memory
from naiad.perf.inputs.signature import InputError
from naiad.perf.inputs.templates import TemplateSet, prepare_inputs

__all__ = [
    "InputError",
    "Replay",
    "ReplayedRequest",
    "TemplateSet",
    "in_shared_memory",
    "prepare_inputs",
    "replay_inputs",
]
