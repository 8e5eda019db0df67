"""One model on demand: its phase, its use, and what requests and loads find. Pure."""

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from naiad.config.load_policy import LoadPolicy
from naiad.repository.control.on_demand.memory.budgets import Amounts


class ResidencePhase(enum.Enum):
    """Where a model is, see the package."""

    COLD = enum.auto()
    LOADING = enum.auto()
    LOADED = enum.auto()
    EVICTING = enum.auto()


@dataclass(frozen=True, slots=True)
class Use:
    """How a loaded model is used now."""

    last_s: float = 0.0
    """Monotonic time of its last execution, or of its last response from the cache."""
    is_busy: bool = False
    """Whether requests are queued or executing."""
    is_bound: bool = False
    """Whether a sequence lives or a stream is open: it may not be evicted."""


IDLE = Use()
Uses = Mapping[str, Use]


@dataclass(slots=True)
class Resident:
    """A model on demand."""

    name: str
    policy: LoadPolicy
    file_bytes: int
    members: frozenset[str] = frozenset()
    """The members of an ensemble."""
    gpus: frozenset[str] = frozenset()
    """The budgets of the GPUs that it is expected to need."""
    phase: ResidencePhase = ResidencePhase.COLD
    charged: Amounts = field(default_factory=dict)
    """What it takes of the budgets now: estimated while it loads, then measured."""
    measured: Amounts = field(default_factory=dict)
    """Its sizes when it was loaded last; empty for never."""
    loaded_s: float = 0.0
    evicted_s: float = -math.inf
    is_protected: bool = False
    """Whether the requests that were held for it are not submitted yet."""
    is_asked: bool = False
    """Whether a request has come while it was evicted."""
    is_urgent: bool = False
    """Whether a call of a running model waits for it."""
    has_new_files: bool = False
    """Whether its files have changed since its load has begun."""
    failure_count: int = 0
    retry_s: float = -math.inf
    reason: str = ""
    """Why its last load has failed."""


class Ask(enum.Enum):
    """What a request for a model finds."""

    READY = enum.auto()
    HELD = enum.auto()
    """It is held; a load is in progress or follows."""
    BEGIN = enum.auto()
    """It is held, and the caller begins the load."""


@dataclass(frozen=True, slots=True)
class LoadRefusal:
    """A request that is not held, because the last load has failed or the server exits."""

    reason: str
    retry_in_s: float
    """0 if there will be no other attempt."""


@dataclass(slots=True)
class Room:
    """Whether there is room for a load."""

    is_admitted: bool = False
    victims: list[list[str]] = field(default_factory=list)
    """Groups of models to evict first, ensembles before their members."""
    refusal: str = ""
    """Why there will never be room."""
