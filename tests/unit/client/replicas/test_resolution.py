"""The addresses of a name."""

import asyncio

import pytest

from naiad.client.connecting import NotConnectedError, parse_address
from naiad.client.replicas.resolution import check_name, resolve_name
from naiad.core.errors import InferError


def test_each_number_of_a_name_is_an_address() -> None:
    async def numbers(*arguments: object, **more: object) -> list[object]:
        rows = [("10.0.0.1", 8001), ("10.0.0.2", 8001), ("10.0.0.1", 8001), ("fd00::1", 8001, 0, 0)]
        return [(None, None, None, "", row) for row in rows]

    async def body() -> None:
        asyncio.get_running_loop().getaddrinfo = numbers  # type: ignore[method-assign]
        found = await resolve_name(parse_address("grpcs://naiad"), 5)
        assert [each.number for each in found] == ["10.0.0.1", "10.0.0.2", "fd00::1"]
        assert {(each.host, each.authority, each.uses_tls) for each in found} == {("naiad", "naiad:8001", True)}
        assert found[0].url == "grpcs://naiad (10.0.0.1)"

    asyncio.run(body())


def test_a_name_without_address_is_named() -> None:
    async def none(*arguments: object, **more: object) -> list[object]:
        raise OSError(-2, "Name or service not known")

    async def body() -> None:
        asyncio.get_running_loop().getaddrinfo = none  # type: ignore[method-assign]
        with pytest.raises(NotConnectedError, match="no address of 'naiad': Name or service not known"):
            await resolve_name(parse_address("grpc://naiad"), 5)

    asyncio.run(body())


@pytest.mark.parametrize("urls", [["grpc://a", "grpc://b"], ["grpc+unix:///a"]])
def test_only_one_name_can_be_resolved(urls: list[str]) -> None:
    with pytest.raises(InferError, match="resolve needs one address with a name"):
        check_name([parse_address(each) for each in urls])
