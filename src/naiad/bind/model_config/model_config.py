"""Options of a bound model besides its tensors."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from naiad.bind.model_config.common import DynamicBatcher, ModelWarmup


@dataclass
class ModelConfig:
    """How a model batches, and what the server does around it."""

    batching: bool = True
    """Whether the first dimension of every tensor counts the rows of a batch."""
    max_batch_size: int = 4
    batcher: DynamicBatcher | None = field(default_factory=DynamicBatcher)
    """None: every request is a batch of its own."""
    response_cache: bool = False
    """Needs `TritonConfig(cache_config=["local,size=BYTES"])`."""
    decoupled: bool = False
    """Whether the function is a generator that sends any number of responses."""
    model_warmup: Sequence[ModelWarmup] | None = None
    feature_names: Sequence[str] = ()
    """Columns of the only input, in its order: rows in JSON and columns of files find them by name."""
