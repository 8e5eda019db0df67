"""The engine: the only entry point of inference. Frontends submit requests and query models through its parts."""

from naiad.core.environment.ports import Loop
from naiad.engine.commands.repository_commands import RepositoryCommands
from naiad.engine.commands.rollout_commands import RolloutCommands
from naiad.engine.inference import Inference
from naiad.engine.lookup.model_table import ModelTable
from naiad.engine.on_demand.held_requests import HeldRequests, HoldLimits
from naiad.engine.phase import ServerPhase
from naiad.engine.processes import Processes
from naiad.engine.regions.regions import SharedMemory
from naiad.engine.rollout.rollouts import Rollouts
from naiad.engine.serving.served import Served
from naiad.engine.views.in_flight import InFlight
from naiad.engine.views.live_state import LiveState
from naiad.engine.views.views import Views
from naiad.repository.control.control_modes import RepositoryControl
from naiad.telemetry.metrics.metrics import Registry


class Engine:
    """The engine of a server process: one object for each of its jobs."""

    def __init__(
        self,
        *,
        server_id: str,
        metrics: Registry,
        shared_memory: SharedMemory | None = None,
        processes: Processes | None = None,
    ) -> None:
        """`processes`: all processes of the server, if it has more than one."""
        processes = processes or Processes()
        self.phase = ServerPhase()
        """Whether the server starts or drains."""
        self.shared_memory = shared_memory or SharedMemory()
        """The registered regions of clients."""
        self.rollouts = Rollouts()
        """The states of rollouts."""
        self.models = ModelTable(self.phase, self.rollouts)
        """The ready versions: look-up, and the errors of missing models."""
        self.inference = Inference(self.models, self.shared_memory)
        """Submit and cancel requests; traces and the recording."""
        self.in_flight = InFlight(self.models, processes)
        """The requests and sequences in progress."""
        self.views = Views(server_id, self.phase, self.models, metrics, processes)
        """Health, metadata, configuration, statistics, index, metrics."""
        self.live = LiveState(self.models, self.views.of_this_process().is_ready)
        """What this process answers to the live stream."""
        self.repository = RepositoryCommands(self.phase, processes)
        """Load and unload models."""
        self.rollout_commands = RolloutCommands(self.phase, self.models, self.rollouts, self.repository, processes)
        """Query and change rollouts."""

    def attach(
        self, control: RepositoryControl[Served], loop: Loop | None = None, limits: HoldLimits | None = None
    ) -> None:
        """Connect the repository; called once, before the frontends start.

        With a `loop`, requests for models on demand are held there, within `limits`.
        """
        self.models.catalog = control.catalog
        self.repository.control = control
        if loop is not None and control.on_demand is not None:
            self.models.held = HeldRequests(control.on_demand, loop, limits or HoldLimits())
