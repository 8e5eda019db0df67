"""Data that is kept from one request to the next has a bound, which is written down here.

The sources are read: each dictionary that grows after it was made has to be in the list below, with what bounds it. A
new cache is either a `BoundedCache`, which counts entries and bytes, or adds its line, or fails this test.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import naiad

ROOT = Path(naiad.__file__).parent
ROOMS = ("core", "wire", "protocol", "frontend", "engine", "client")

BY_CONFIGURATION = "one entry for each part of a model's configuration"
BY_OPEN = "one entry for each request, call, stream or connection that is open; these have limits"
BY_COUNT = "cleared, or closed to new entries, at a number of entries of bounded size"

GROWING = {
    "core.limits.retry_budget:_calls": "a list with a number for each of ten seconds",
    "core.limits.retry_budget:_retries": "a list with a number for each of ten seconds",
    "core.limits.bounded_cache:_sizes": "the sizes of a BoundedCache's entries",
    "engine.admission:_inputs": BY_CONFIGURATION,
    "engine.cache.cached_model:_headers": BY_COUNT,
    "engine.cache.cached_model:_pending": BY_OPEN,
    "engine.cache.cached_model:_places": BY_OPEN,
    "engine.cache.cached_model:waiting": BY_OPEN,
    "engine.serving.decoupled:_open": BY_OPEN,
    "engine.serving.dispatch.response_queue:_by_request": BY_OPEN,
    "engine.serving.decoupled:_paused": BY_OPEN,
    "engine.ensemble.ensemble_model:_response_headers": BY_COUNT,
    "engine.ensemble.ensemble_model:_runs": BY_OPEN,
    "engine.ensemble.ensemble_model:waiting": BY_OPEN,
    "engine.ensemble.ensemble_graph:_entered": BY_CONFIGURATION,
    "engine.ensemble.ensemble_graph:_fitted": BY_COUNT,
    "engine.ensemble.ensemble_graph:_plans": BY_COUNT,
    "engine.ensemble.ensemble_run:_values": BY_OPEN,
    "engine.serving.dispatch.sequence_dispatcher:_executing": BY_OPEN,
    "engine.serving.dispatch.sequence_dispatcher:_held": BY_OPEN,
    "engine.model_calls:_open": BY_OPEN,
    "engine.lookup.model_table:left": "the models on demand of the repository",
    "engine.on_demand.held_requests:_queues": "--max-held-requests",
    "engine.on_demand.held_requests:requests": "--max-held-requests-per-model",
    "engine.regions.bus_error:_watched": "the mapped regions, each until its last view is gone",
    "engine.regions.regions:_regions": "--max-shared-memory-regions",
    "engine.remote.remote_model:_calls": BY_OPEN,
    "engine.remote.remote_responses:_headers": BY_COUNT,
    "engine.rollout.response_comparison:_greatest": "the outputs of a model",
    "engine.rollout.rollouts:_entries": "the loaded models",
    "engine.rollout.rollouts:sides": "the loaded versions of a model",
    "engine.rollout.shadow:results": "four results",
    "engine.rollout.shadow:shadow": "four results",
    "engine.rollout.sides:latencies": "the buckets of a histogram",
    "engine.rollout.sides:rollbacks": "the reasons of rollbacks",
    "engine.transforms.padding:_cuts": BY_COUNT,
    "engine.transforms.padding:_forms": BY_COUNT,
    "engine.transforms.padding:_layouts": BY_COUNT,
    "engine.cache.response_store:_entries": "the size of the response cache, in bytes",
    "engine.cache.response_store:keys": "the entries of the response cache",
    "engine.transforms.sequence_tensors:memo": BY_COUNT,
    "engine.serving.suspects:found": BY_COUNT,
    "engine.transforms.shared_memory:_outputs": BY_OPEN,
    "engine.transforms.shared_memory:memo": BY_COUNT,
    "engine.serving.dispatch.busy_polling:@may_busy_poll": "whether there is a trial",
    "client.replicas.replica_calls:_watching": "one task for each of at most 64 servers",
    "client.live_view:_versions": "the versions of a server that is watched",
    "engine.views.live_state:_watches": "64 versions that pages show",
    "frontend.dashboard.dashboard_page:_files": "the files of the page",
    "frontend.dashboard.live_feed:_streams": "64 open streams",
    "frontend.clouds.multi_model:_models": "the loaded models, each by a load of SageMaker",
    "frontend.connections.endpoint:_address_of": BY_OPEN,
    "frontend.connections.endpoint:_counts": BY_OPEN,
    "frontend.http1.endpoint:_prefixes": BY_COUNT,
    "wire.http1:_heads": "1,024 heads of at most 4 KiB",
    "frontend.http2.flow:waiting": BY_OPEN,
    "frontend.router:_patterns": "the routes of the server",
    "frontend.http2.flow:watching": BY_OPEN,
    "frontend.http2.time_limits:_bodies": BY_OPEN,
    "frontend.http2.time_limits:_queues": BY_OPEN,
    "frontend.http2.rest_context:_body": "the body of one request, which the budget of the server counts",
    "frontend.http2.endpoint:_prefixes": BY_COUNT,
    "frontend.http2.endpoint:headers": "the fields of one header block",
    "frontend.rest.generate:_inputs": "1,024 models that exist",
    "frontend.rest.infer:_headers": BY_COUNT,
    "frontend.rest.openai.served_models:_found": "1,024 models that exist",
    "frontend.rest.openai.text_call:_counters": "the batches of a call, which has at most 2048 texts",
    "frontend.rest.openai.text_call:_positions": BY_OPEN,
    "frontend.rest.openai.text_call:_vectors": "the vectors of one request, at most 8,388,608 numbers",
    "frontend.long_work.slice_runner:_jobs": "the runner's limits in number and bytes",
    "protocol.generate:parameters": BY_OPEN,
    "protocol.grpc.infer:_RAW_FRAMINGS": BY_COUNT,
    "protocol.grpc.infer:memo": "one entry",
    "protocol.json.response:memo": BY_COUNT,
    "protocol.grpc.header:custom": BY_OPEN,
    "protocol.grpc.walk:contents": BY_OPEN,
    "protocol.reflection.symbol_index:_with_imports": "one entry for each file of the protocols",
    "wire.grpc:_block": "the message of one call",
    "wire.http1_client:_block": "the body of one response",
    "client.transport.grpc:_blocks": "one entry for each method of the service",
    "wire.http2.client_connection:_streams": BY_OPEN,
    "wire.http2.server_connection:_streams": BY_OPEN,
    "wire.http2.frame_output:_blocked": BY_OPEN,
    "wire.http2.frame_output:dropping": "requests of one connection that were answered early, at most 256",
    "engine.serving.decoupled:_cancelled": BY_OPEN,
    "engine.rollout.rollouts:_intentions": "changes of rollouts that are being loaded, one for each model",
    "engine.transforms.device_headers:_copies": "emptied when it has _LIMIT",
    "engine.serving.large_requests:_answers": "the parts of one request",
    "engine.serving.large_requests:_headers": "two for each request: full parts and the last one",
    "engine.serving.large_requests:_numbers": BY_OPEN,
    "client.sync_client:_models": "emptied when it has _MAX_MODELS",
    "frontend.accounting.key_usage:_usages": "the keys of the key file",
    "frontend.accounting.key_usage:limited_counts": "the three limits of a key",
    "wire.http2.frame_output:_ready": BY_OPEN,
}


def growing() -> Iterator[str]:
    """Yield the dictionaries that are assigned to by a key, and the functions that are cached."""
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            if not path.name.endswith("_pb2.py"):
                module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                yield from (f"{module}:{name}" for name in names_in(ast.parse(path.read_text(encoding="utf-8"))))


def names_in(tree: ast.Module) -> Iterator[str]:
    of_module = {name for node in tree.body for name in assigned(node)} | {"memo"}
    for node in ast.walk(tree):
        for target in targets(node):
            if isinstance(target, ast.Subscript):
                yield from name_of(target.value, of_module)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setdefault":
            yield from name_of(node.func.value, of_module)
        if isinstance(node, ast.FunctionDef):
            yield from (f"@{node.name}" for decorator in node.decorator_list if "cache" in ast.unparse(decorator))


def targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign | ast.AugAssign) else []


def assigned(node: ast.stmt) -> Iterator[str]:
    for target in targets(node):
        if isinstance(target, ast.Name):
            yield target.id


def name_of(value: ast.expr, of_module: set[str]) -> Iterator[str]:
    if isinstance(value, ast.Attribute):
        yield value.attr
    elif isinstance(value, ast.Name) and value.id in of_module:
        yield value.id


def test_what_grows_with_requests_has_a_bound() -> None:
    unbounded = sorted(set(growing()) - set(GROWING))
    assert not unbounded, (
        f"use naiad.core.limits.bounded_cache.BoundedCache, or say in GROWING what bounds {unbounded}"
    )


def test_the_list_of_bounds_is_up_to_date() -> None:
    assert sorted(set(GROWING) - set(growing())) == []


def test_a_new_cache_is_found() -> None:
    source = "import functools\nclass A:\n    def f(self):\n        self._x[1] = 2\n@functools.cache\ndef g(): ...\n"
    assert set(names_in(ast.parse(source))) == {"_x", "@g"}
