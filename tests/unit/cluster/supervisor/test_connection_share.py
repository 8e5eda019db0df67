from dataclasses import replace

from naiad.cluster.supervisor.restarts import share_of
from naiad.options.options import ServerOptions
from naiad.options.trace import TraceOptions


def options(**changes: object) -> ServerOptions:
    return replace(ServerOptions(process_count=3), **changes)  # type: ignore[arg-type]


def test_limits_of_connections_are_divided_and_rounded_up() -> None:
    given = ServerOptions(process_count=3)
    share = share_of(replace(given, http=replace(given.http, max_connections=10)), 0, 1)
    assert share.http.max_connections == 4
    assert share.grpc.max_connections == -(-given.grpc.max_connections // 3)


def test_only_local_cache_size_is_divided() -> None:
    assert share_of(options(cache_config={"local": {"size": "3000", "ttl": "5"}}), 0, 1).cache_config == {
        "local": {"size": "1000", "ttl": "5"}
    }
    redis = {"redis": {"host": "h", "size": "9"}}
    assert share_of(options(cache_config=redis), 0, 1).cache_config == redis


def test_invalid_size_is_left_to_the_process() -> None:
    config = {"local": {"size": "much"}}
    assert share_of(options(cache_config=config), 0, 1).cache_config == config


def test_what_the_supervisor_does_is_not_done_again() -> None:
    share = share_of(options(drain_s=5.0, no_effect=("--x",)), 0, 1)
    assert (share.drain_s, share.no_effect) == (0.0, ())


def test_unloadable_model_does_not_block_successor() -> None:
    starts = [share_of(options(), 0, start).repository.exit_on_error for start in (1, 2, 3)]
    assert starts == [True, False, False]


def test_no_two_processes_write_to_one_trace_file() -> None:
    given = options(trace=TraceOptions(file="/tmp/trace.json"))
    paths = [share_of(given, slot, start).trace.file for slot in range(3) for start in (1, 2, 3)]
    assert len(set(paths)) == 9
    assert paths[0] == "/tmp/trace.json.process1"
    assert paths[4] == "/tmp/trace.json.process2-2"
    assert share_of(options(), 0, 1).trace.file == ""


def test_the_given_options_stay_as_they_are() -> None:
    given = options(cache_config={"local": {"size": "3000"}})
    share_of(given, 0, 1)
    assert given.cache_config == {"local": {"size": "3000"}}
