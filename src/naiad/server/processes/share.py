"""What one of several processes is told to serve with: its part of what can be divided."""

from dataclasses import replace

from naiad.config.options import ServerOptions


def share_of(options: ServerOptions, slot: int, start: int) -> ServerOptions:
    """Return the options of the process that takes a slot for the `start`-th time.

    Limits of connections and of request bytes and the local cache are divided; delays and warnings that are the
    supervisor's are left out.
    --exit-on-error is about the start of the server: what the others serve on, and could not be loaded any more,
    keeps no successor from serving the rest.
    """
    count = options.process_count
    cache = {name: dict(settings) for name, settings in options.cache_config.items()}
    size = cache.get("local", {}).get("size", "")
    if size.isascii() and size.isdigit():
        cache["local"]["size"] = str(int(size) // count)
    return replace(
        options,
        cache_config=cache,
        repository=replace(options.repository, exit_on_error=options.repository.exit_on_error and start == 1),
        drain_s=0.0,
        max_request_bytes=-(-options.max_request_bytes // count),
        no_effect=(),
        http=replace(options.http, max_connections=-(-options.http.max_connections // count)),
        grpc=replace(options.grpc, max_connections=-(-options.grpc.max_connections // count)),
        trace=replace(options.trace, file=_own_file(options.trace.file, slot, start)),
    )


def _own_file(path: str, slot: int, start: int) -> str:
    """Return a path that no other process writes to, nor has one written to that had the slot before."""
    if not path:
        return path
    return f"{path}.process{slot + 1}" + (f"-{start}" if start > 1 else "")
