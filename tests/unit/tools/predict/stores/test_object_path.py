"""What is wrong with an object that a row names, and what with its store."""

from typing import Any

import pytest

from naiad.core.errors import ErrorCode, InferError
from naiad.repository.cloud.objects.object_failures import ObjectFailure
from naiad.repository.cloud.objects.objects import ObjectStore
from naiad.repository.cloud.objects.stored_object import BadKeyError, StoredObject, StoreError
from naiad.tools.predict.stores.object_path import ObjectFolder
from naiad.tools.predict.stores.store_place import StorePlace

FOLDER = ObjectFolder(StorePlace("s3://b/pictures", 1))
DENIED = StoreError(ErrorCode.INVALID_ARG, "access is denied", ObjectFailure.DENIED)
BUSY = StoreError(ErrorCode.UNAVAILABLE, "busy", ObjectFailure.PASSING)
DAMAGED = StoreError(ErrorCode.INTERNAL, "no answer that is known")


def read(monkeypatch: pytest.MonkeyPatch, answer: Any, others: "Exception | None" = DENIED) -> InferError:
    """Return the error of a picture; `others` is that of all other objects."""

    def answers(error: Any) -> Any:
        def call(self: ObjectStore, *arguments: object) -> Any:
            if isinstance(error, Exception):
                raise error
            return error

        return call

    monkeypatch.setattr(ObjectStore, "read", answers(answer))
    monkeypatch.setattr(ObjectStore, "top_objects", answers([StoredObject("other.png", 1, "1")]))
    monkeypatch.setattr(ObjectStore, "read_range", answers(others))
    with pytest.raises(InferError) as caught:
        FOLDER.read("a.png", 10)
    return caught.value


@pytest.mark.parametrize(
    ("answer", "others", "text"),
    [
        (None, None, "no such object"),
        ((b"12345678901", {}), None, "more than 10 bytes"),
        (DENIED, None, "access is denied"),
        (BadKeyError("no path", "a"), None, "no path"),
    ],
    ids=["absent", "large", "denied alone", "no path"],
)
def test_errors_of_a_row(monkeypatch: pytest.MonkeyPatch, answer: Any, others: Any, text: str) -> None:
    error = read(monkeypatch, answer, others)
    assert (error.code, isinstance(error, StoreError)) == (ErrorCode.INVALID_ARG, False)
    assert text in error.message


@pytest.mark.parametrize(
    ("answer", "others", "text"),
    [(BUSY, None, "busy"), (DAMAGED, None, "no answer"), (DENIED, DENIED, "denied"), (DENIED, DAMAGED, "no answer")],
    ids=["busy", "unknown", "denied", "unknown then"],
)
def test_errors_of_a_store(monkeypatch: pytest.MonkeyPatch, answer: Any, others: Any, text: str) -> None:
    error = read(monkeypatch, answer, others)
    assert (error.code, isinstance(error, StoreError)) == (ErrorCode.UNAVAILABLE, True)
    assert text in error.message


def test_a_process_without_credential_has_no_failed_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CLOUD_CREDENTIAL_PATH", "/absent.json")
    with pytest.raises(StoreError, match=r"/absent\.json cannot be read") as caught:
        ObjectFolder(StorePlace("s3://b/no-credential", 1)).read("a.png", 10)
    assert caught.value.code is ErrorCode.UNAVAILABLE
