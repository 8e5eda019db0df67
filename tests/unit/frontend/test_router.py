"""The routes that a router remembers are bounded, and evicted ones are found again."""

from types import SimpleNamespace

from naiad.frontend.router import Route, Router


def context(path):
    made = SimpleNamespace(method="GET", path=path, headers={}, client=None, statuses=[])
    made.respond = lambda status, headers, parts: made.statuses.append(status)
    return made


def router(found, **options):
    return Router(
        [Route("/models/(?P<name>.+)", "metadata", {"GET": lambda _, names: found.append(names["name"])})], **options
    )


def test_remembered_routes_are_bounded_in_number():
    found = []
    made = router(found, cached_paths=4)
    for path in [f"/models/{number % 9}" for number in range(20)]:
        made.handle(context(path))
        assert len(made._found) <= 4
        assert made._found.used_bytes == sum(map(len, made._found))
    assert found == [str(number % 9) for number in range(20)]


def test_unknown_and_long_paths_are_bounded_too():
    made = router([], cached_paths=4)
    for number in range(20):
        unknown = context(f"/{number}" + "x" * 600 * (number % 2))
        made.handle(unknown)
        assert unknown.statuses == [404]
        assert len(made._found) <= 4
        assert all(len(path) <= 512 for path in made._found)
