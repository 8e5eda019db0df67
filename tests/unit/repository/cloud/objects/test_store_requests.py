"""When requests go without a credential, and what failures become."""

from collections.abc import Sequence
from typing import Any

import pytest

from naiad.core.errors import ErrorCode
from naiad.repository.cloud.objects import objects as module
from naiad.repository.cloud.objects import store_requests
from naiad.repository.cloud.objects.credentials import Credential
from naiad.repository.cloud.objects.object_failures import ObjectFailure
from naiad.repository.cloud.objects.objects import ObjectStore
from naiad.repository.cloud.objects.stored_object import StoreError
from naiad.repository.cloud.url import parse_cloud_url

AWAY = "GET http://169.254.169.254/latest/meta-data in 1s - HTTP error: timed out"
DENIED = "Server returned non-2xx status code: 403 Forbidden: <Code>AccessDenied</Code>"
BUSY = "Server returned non-2xx status code: 503 Slow Down"


class GenericError(Exception):
    """As obstore's."""


class Library:
    """Answers heads and puts as a script says; notes whether they went with a credential."""

    def __init__(self, script: Sequence[str]) -> None:
        self.script = list(script)
        self.requests: list[str] = []

    def head(self, client: str, key: str) -> Any:
        self._answer(f"head {client}")
        return {"path": key, "size": 1, "e_tag": "1"}

    def put(self, client: str, *arguments: Any, **fields: Any) -> Any:
        self._answer(f"put {client}")
        return {}

    class exceptions:
        class AlreadyExistsError(Exception):
            pass

        PreconditionError = NotSupportedError = AlreadyExistsError

    def _answer(self, request: str) -> None:
        self.requests.append(request)
        if text := self.script.pop(0) if self.script else "":
            raise GenericError(text)


def opened(monkeypatch: pytest.MonkeyPatch, *script: str) -> tuple[ObjectStore, Library]:
    library = Library(script)
    monkeypatch.setattr(module, "_library", lambda: library)
    monkeypatch.setattr(store_requests, "make_client", lambda *_, anonymous, **__: "without" if anonymous else "with")
    return ObjectStore(parse_cloud_url("s3://b/x"), Credential("a role"), {}, first_pause_s=0.001), library


def test_a_machine_without_credential_reads_what_is_public(monkeypatch: pytest.MonkeyPatch) -> None:
    store, library = opened(monkeypatch, AWAY)
    store.find("a")
    store.find("b")
    assert library.requests == ["head with", "head without", "head without"]


def test_a_credential_that_has_worked_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    store, library = opened(monkeypatch, "", AWAY, AWAY, "", *[AWAY] * 5)
    store.find("a")
    store.find("b")
    assert library.requests == ["head with"] * 4
    with pytest.raises(StoreError, match=r"failed 5 times in .*: timed out") as caught:
        store.find("c")
    assert caught.value.code is ErrorCode.UNAVAILABLE
    store.find("d")
    assert set(library.requests) == {"head with"}


def test_writes_never_go_without_a_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    store, library = opened(monkeypatch, AWAY, "", AWAY, "", "")
    store.find("a")
    store.write("b", b"1", {})
    store.find("c")
    assert library.requests == ["head with", "head without", "put with", "put with", "head without"]
    store, library = opened(monkeypatch, *[AWAY] * 5)
    with pytest.raises(StoreError, match=r"access is denied .*no credential was found \(a role\)"):
        store.write("b", b"1", {})
    assert library.requests == ["put with"] * 5


def test_a_first_failure_does_not_last(monkeypatch: pytest.MonkeyPatch) -> None:
    store, library = opened(monkeypatch, AWAY, DENIED, "", AWAY)
    with pytest.raises(StoreError, match="no credential was found"):
        store.find("a")
    store.find("b")
    store.find("c")
    assert library.requests == ["head with", "head without", "head with", "head with", "head with"]


@pytest.mark.parametrize(
    ("text", "failure", "code"),
    [
        (DENIED, ObjectFailure.DENIED, ErrorCode.INVALID_ARG),
        (BUSY, ObjectFailure.PASSING, ErrorCode.UNAVAILABLE),
        ("Server returned non-2xx status code: 400 Bad Request", ObjectFailure.OTHER, ErrorCode.INTERNAL),
        ("Server returned non-2xx status code: 404 Not Found", ObjectFailure.MISSING, ErrorCode.NOT_FOUND),
    ],
)
def test_failures_have_kinds_and_codes(
    monkeypatch: pytest.MonkeyPatch, text: str, failure: ObjectFailure, code: ErrorCode
) -> None:
    store, _ = opened(monkeypatch, *[text] * 5)
    with pytest.raises(StoreError) as caught:
        store.find("a")
    error = caught.value.with_message("other")
    assert (error.failure, error.code, error.message) == (failure, code, "other")
