"""Names of tools, which have fewer letters than names of models, and the pages of a list of tools."""

import base64
import binascii
import hashlib
import re
from bisect import bisect_right
from collections.abc import Sequence

PAGE_TOOLS = 100
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_OTHER = re.compile(r"[^A-Za-z0-9_.-]")
_KEPT_CHARACTERS = 100


def tool_name(model: str) -> str:
    """Return the name of a model's tool: its own if the protocol allows it, otherwise one with a digest of it."""
    if _NAME.fullmatch(model):
        return model
    digest = hashlib.sha256(model.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return f"{_OTHER.sub('_', model)[:_KEPT_CHARACTERS]}-{digest}"


def page_after(names: Sequence[str], cursor: str | None) -> tuple[Sequence[str], str | None]:
    """Return a page of sorted names and the cursor of the next one. Raises ValueError for a wrong cursor.

    A cursor has the last name of its page: models that come and go meanwhile repeat or skip no other model.
    """
    start = 0 if cursor is None else bisect_right(names, _read_cursor(cursor))
    page = names[start : start + PAGE_TOOLS]
    has_more = start + PAGE_TOOLS < len(names)
    return page, base64.urlsafe_b64encode(page[-1].encode()).decode() if has_more else None


def _read_cursor(cursor: str) -> str:
    try:
        return base64.b64decode(cursor, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise ValueError("the cursor is none that this server has given") from None
