"""Every case of the frame-level suite is played twice: all bytes of a step at once, and byte by byte."""

from collections.abc import Callable
from functools import partial

import pytest

from support.http2_conversation import Conversation


@pytest.fixture(params=[0, 1], ids=["at_once", "byte_by_byte"])
def converse(request: pytest.FixtureRequest) -> Callable[..., Conversation]:
    """A function `(limits=None, opened=True)` that connects a client to a server."""
    return partial(Conversation, request.param)


@pytest.fixture
def client(converse: Callable[..., Conversation]) -> Conversation:
    """A client whose connection is set up."""
    return converse()
