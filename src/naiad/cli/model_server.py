"""Questions of verbs to a running server, over HTTP."""

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from typing import Any

_TIMEOUT_S = 10.0
DEFAULT_URL = "http://localhost:8000"


class NoResponseError(Exception):
    """The server has not answered, or has refused; the message says why and what to do."""


def ask(url: str, model: str, what: str, *, version: str = "", headers: Sequence[str] = ()) -> dict[str, Any]:
    """Return the JSON object that answers `GET /v2/models/{model}/{what}`. Raises NoResponseError."""
    base = (url if "://" in url else f"http://{url}").rstrip("/")
    if not base.startswith(("http://", "https://")):
        raise NoResponseError(f"'{url}' is no address of a server, expected http://HOST:PORT")
    path = f"/v2/models/{urllib.parse.quote(model, safe='')}" + (f"/versions/{version}" if version else "")
    pairs = dict(_header(text) for text in headers)
    try:
        request = urllib.request.Request(f"{base}{path}/{what}", headers=pairs)
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            found = json.load(answer)
    except urllib.error.HTTPError as error:
        raise NoResponseError(f"{base} answered {error.code}: {_reason(error.read())}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        raise NoResponseError(
            f"no answer from a server at {base} ({cause}); give its --url, or --model-repository to do without one"
        ) from error
    if not isinstance(found, dict):
        raise NoResponseError(f"{base} answered no JSON object to {path}/{what}: is it a naiad server?")
    return found


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise NoResponseError(f"--header '{text}' is not of the form 'NAME: VALUE'")
    return name.strip(), value.strip()


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace") or "no reason given"
