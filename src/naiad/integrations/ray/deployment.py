"""A model repository as an application of Ray Serve."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from naiad.core.errors import invalid_argument, unsupported
from naiad.integrations.ray.queue_scaling import QueueScaling
from naiad.options.sources.command_line import OptionError, parse_options

if TYPE_CHECKING:
    from ray.serve import Application

MAX_ONGOING_REQUESTS = 512
"""Of a replica: Serve must send a replica more than it executes, or naiad has nothing to put into batches."""
OWN_FLAGS = ("http-address", "allow-http", "allow-grpc", "allow-metrics", "processes")
"""Flags that a replica sets itself."""


def deployment(
    repository: str,
    *flags: str,
    name: str = "naiad",
    replicas: int | tuple[int, int] = 1,
    target_queue: float = 8.0,
    models_per_replica: int = 0,
    max_ongoing_requests: int = MAX_ONGOING_REQUESTS,
    **options: Any,
) -> "Application":
    """Return an application whose replicas serve a repository: `serve.run(deployment("/mnt/models"))`.

    All REST routes of naiad are behind the proxy of Serve. `flags` are flags of `naiad serve`. With `replicas` as
    (least, most), Serve has as many replicas as the requests that wait in naiad's queues need, `target_queue` for
    each. With `models_per_replica` models are loaded on demand, and Serve sends requests with the same multiplexed
    model id to replicas that have the model; it notes that number of ids for each. `options` are further ones of
    `serve.deployment`, such as `ray_actor_options`. Raises InferError.
    """
    try:
        from ray import serve
    except ImportError:
        raise unsupported("a deployment needs Ray Serve; pip install 'naiad[ray]' 'ray[serve]==2.60.*'") from None
    from naiad.integrations.ray.serve_replica import ServeReplica

    if "://" not in repository:
        repository = str(Path(repository).absolute())  # replicas have other working directories
    if models_per_replica:
        flags = ("--model-load-policy=on-demand", *flags)
    _check(repository, flags)
    if isinstance(replicas, int):
        options["num_replicas"] = replicas
    else:
        options["autoscaling_config"] = autoscaling(*replicas, target_queue) | options.get("autoscaling_config", {})

    class Replica(ServeReplica):
        """A class of this deployment: Serve finds the decorated method of its class."""

        if models_per_replica:
            open_model = serve.multiplexed(max_num_models_per_replica=models_per_replica)(ServeReplica.open_model)

    decorate = serve.deployment(name=name, max_ongoing_requests=max_ongoing_requests, **options)
    return decorate(Replica).bind(repository, list(flags), has_model_ids=bool(models_per_replica))


def autoscaling(least: int, most: int, target_queue: float) -> dict[str, Any]:
    """Return the settings of Serve for a number of replicas that follows naiad's queues. Raises InferError."""
    if not 0 <= least <= most or not most:
        raise invalid_argument(f"replicas is ({least}, {most}); expected the least and the most, at least (0, 1)")
    if not target_queue > 0:
        raise invalid_argument(f"target_queue is {target_queue:g}; expected more than 0 requests for each replica")
    return {
        "min_replicas": least,
        "max_replicas": most,
        "policy": {
            "policy_function": f"{QueueScaling.__module__}:{QueueScaling.__name__}",
            "policy_kwargs": {"target_queue": target_queue},
        },
    }


def _check(repository: str, flags: tuple[str, ...]) -> None:
    """Raise InferError for flags that a replica could not use, before Serve starts it again and again."""
    for flag in flags:
        if flag.lstrip("-").partition("=")[0] in OWN_FLAGS:
            raise invalid_argument(f"{flag}: a replica of Ray Serve sets {', '.join(OWN_FLAGS)} itself; remove it")
    try:
        parse_options([f"--model-repository={repository}", *flags], {})
    except OptionError as error:
        raise invalid_argument(str(error)) from None
