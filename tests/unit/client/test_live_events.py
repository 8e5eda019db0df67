"""The live stream of a server: what is none."""

import asyncio

import pytest

from naiad.client.live_events import _events
from naiad.core.errors import InferError


def test_a_page_is_no_live_stream():
    async def read():
        reader = asyncio.StreamReader()
        reader.feed_data(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>")
        return [event async for event in _events(reader)]

    with pytest.raises(InferError, match="answered with text/html, which is no live stream"):
        asyncio.run(read())
