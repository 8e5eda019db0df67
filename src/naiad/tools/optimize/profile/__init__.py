"""Time, throughput and memory of candidates: alone in a process, then as models of a running naiad."""

from naiad.tools.optimize.profile.candidate_configuration import configuration
from naiad.tools.optimize.profile.finalist_serving import serve
from naiad.tools.optimize.profile.measuring import measure
from naiad.tools.optimize.profile.runtimes import cores, runtimes
from naiad.tools.optimize.profile.tuning import tune

__all__ = ["configuration", "cores", "measure", "runtimes", "serve", "tune"]
