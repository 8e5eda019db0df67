"""Time, throughput and memory of candidates: alone in a process, then as models of a running naiad."""

from naiad.optimizer.profile.configuration import configuration
from naiad.optimizer.profile.measuring import measure
from naiad.optimizer.profile.runtimes import cores, runtimes
from naiad.optimizer.profile.serving import serve
from naiad.optimizer.profile.tuning import tune

__all__ = ["configuration", "cores", "measure", "runtimes", "serve", "tune"]
