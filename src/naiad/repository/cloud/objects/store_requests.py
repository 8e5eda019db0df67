"""Requests to one object store: clients, further attempts after failures that pass, errors that say what to do.

Requests have a credential if there is one. A machine without one reads public objects: when the first request finds
that the identity service of the machine does not answer, reading goes on without a credential. Once a request with
the credential has succeeded, a failure of that service is one that passes. Writes always have the credential.
"""

import logging
import random
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from naiad.core.errors import ErrorCode, InferError, excerpt
from naiad.repository.cloud.objects.credentials import Credential
from naiad.repository.cloud.objects.object_failures import Failure, ObjectFailure, classify
from naiad.repository.cloud.objects.provider import BRIEF_S, FIXES, WRITE_FIXES, is_installed, make_client
from naiad.repository.cloud.objects.stored_object import BadKeyError, ObjectChangedError, StoreError
from naiad.repository.cloud.url import CloudUrl

_log = logging.getLogger(__name__)

ATTEMPTS = 5
"""How often a request is made at most."""
FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0
_UPLOAD_RETRIES = 10
"""Of each part of an object."""
_BAD_PATH = re.compile(r'Path "(.*?)"(?:: | contained)', re.DOTALL)

T = TypeVar("T")


class StoreRequests:
    """Makes requests below a URL. Its methods are called from several threads."""

    def __init__(
        self,
        url: CloudUrl,
        credential: Credential,
        environ: Mapping[str, str],
        *,
        first_pause_s: float,
        limit_s: float | None,
        patience_s: float | None,
        write_fixes: Mapping[str, str] = WRITE_FIXES,
    ) -> None:
        """Nothing is connected to yet; for the parameters see `ObjectStore`.

        Raises InferError(UNSUPPORTED) when the library is not there.
        """
        is_installed(url)
        self.url = url
        self._credential = credential
        self._environ = environ
        self._first_pause_s = first_pause_s
        self._lock = threading.Lock()
        self._clients: dict[bool, Any] = {}
        """By whether they go without a credential."""
        self._is_anonymous = False
        self._has_worked = {True: False, False: False}
        """Whether a request has succeeded, without a credential and with it."""
        self._usual_limit_s = self._limit_s = limit_s
        self._patience_s = patience_s
        self._write_fixes = write_fixes
        self._has_answered = False

    def be_brief(self) -> None:
        """Give up within seconds until the first answer: what the store had before can be used without it."""
        with self._lock:
            self._limit_s = BRIEF_S
            self._clients.clear()

    def _attempt(self, action: str, work: Callable[[], T]) -> T:
        """Read something, again if that fails in passing. Raises InferError."""
        return self._repeat(action, work, FIXES, is_write=False)

    def _attempt_write(self, action: str, work: Callable[[], T]) -> T:
        """Write something, again if that fails in passing. Raises InferError."""
        return self._repeat(action, work, self._write_fixes, is_write=True)

    def _repeat(self, action: str, work: Callable[[], T], fixes: Mapping[str, str], *, is_write: bool) -> T:
        """`fixes`: of denied access, by scheme."""
        start_s = time.monotonic()
        attempt = 1
        while True:
            is_anonymous = self._is_anonymous and not is_write
            try:
                answer = work()
                self._has_answered = self._has_worked[is_anonymous] = True
                self._end_brevity()
                return answer
            except (InferError, ObjectChangedError):
                raise
            except OSError as error:
                if error.errno is not None:
                    text = f"{action} failed: {error.strerror}; check the disk of the cache"
                    raise StoreError(ErrorCode.INTERNAL, text) from error
                failure = classify(error)
            except Exception as error:
                failure = classify(error)
            if failure.kind is ObjectFailure.NO_CREDENTIAL and not is_anonymous:
                if self._has_worked[False]:
                    failure = replace(failure, kind=ObjectFailure.PASSING)
                elif not is_write:
                    self._read_without_credential()
                    continue
            elapsed_s = time.monotonic() - start_s
            self._has_answered |= failure.is_answer
            is_passing = failure.kind in (ObjectFailure.PASSING, ObjectFailure.NO_CREDENTIAL)
            if not is_passing or self._is_last(attempt, elapsed_s):
                raise self._refusal(action, failure, attempt, elapsed_s, fixes[self.url.scheme], is_anonymous)
            pause_s = min(_LONGEST_PAUSE_S, self._first_pause_s * 2 ** (attempt - 1)) * random.uniform(0.75, 1.25)
            _log.warning("%s failed, trying again in %.1f s: %s", action, pause_s, failure.text)
            attempt += 1
            time.sleep(pause_s)

    def _is_last(self, attempt: int, elapsed_s: float) -> bool:
        """Return whether there is no further attempt."""
        if self._limit_s is not None and elapsed_s >= self._limit_s:
            return True
        if self._patience_s is not None and self._has_answered:
            return elapsed_s >= self._patience_s
        return attempt >= ATTEMPTS

    def _end_brevity(self) -> None:
        """Give requests their usual time from now on, since the store answers."""
        if self._limit_s != self._usual_limit_s:
            with self._lock:
                self._limit_s = self._usual_limit_s
                self._clients.clear()

    def _read_without_credential(self) -> None:
        """Read without a credential from now on, as public objects allow."""
        with self._lock:
            self._is_anonymous = True

    def _refusal(
        self, action: str, failure: Failure, attempts: int, elapsed_s: float, fix: str, is_anonymous: bool
    ) -> InferError:
        source, kind = self._credential.source, failure.kind
        if kind is ObjectFailure.MISSING:
            text = f"it is not there ({failure.text}); check bucket, path and region"
            return StoreError(ErrorCode.NOT_FOUND, f"{action} failed: {text}", kind)
        if kind in (ObjectFailure.DENIED, ObjectFailure.NO_CREDENTIAL):
            has_none = is_anonymous or kind is ObjectFailure.NO_CREDENTIAL
            used = f"no credential was found ({source})" if has_none else f"credential used: {source}"
            if is_anonymous and not self._has_worked[True]:
                self._is_anonymous = False  # nothing is public: the next request asks for a credential again
            text = f"{action} failed: access is denied ({failure.text}); {used}; {fix}"
            return StoreError(ErrorCode.INVALID_ARG, text, kind)
        if kind is ObjectFailure.PASSING:
            text = (
                f"{action} failed {attempts} times in {elapsed_s:.1f} s: {failure.text}; check that "
                f"{self.url.endpoint or 'the network and the endpoint'} can be reached from here"
            )
            return StoreError(ErrorCode.UNAVAILABLE, text, kind)
        if kind is ObjectFailure.BAD_KEY:
            found = _BAD_PATH.search(failure.text)
            key = found[1] if found else ""
            return bad_key(action, f"the key {excerpt(repr(key))}" if key else excerpt(failure.text), key)
        return StoreError(ErrorCode.INTERNAL, f"{action} failed: {failure.text}; credential used: {source}", kind)

    def _reading(self) -> Any:
        """Return the client that reads. Raises InferError for a credential that cannot be used."""
        return self._client(is_anonymous=self._is_anonymous)

    def _writing(self) -> Any:
        """Return the client that writes. Raises InferError for a credential that cannot be used."""
        return self._client(is_anonymous=False)

    def _client(self, *, is_anonymous: bool) -> Any:
        with self._lock:
            if is_anonymous not in self._clients:
                self._clients[is_anonymous] = self._new_client(is_anonymous=is_anonymous)
            return self._clients[is_anonymous]

    def _uploading(self) -> Any:
        """Return a client that itself repeats a part of an upload, not all parts after an error of one."""
        return self._new_client(is_anonymous=False, retries=_UPLOAD_RETRIES)

    def _new_client(self, *, is_anonymous: bool, retries: int = 0) -> Any:
        try:
            return make_client(
                self.url,
                self._credential,
                self._environ,
                anonymous=is_anonymous,
                limit_s=self._limit_s,
                retries=retries,
            )
        except InferError as error:
            raise StoreError(error.code, error.message) from error


def bad_key(action: str, what: str, key: str) -> BadKeyError:
    """Return the error for an object whose name is no path."""
    return BadKeyError(f"{action} failed: {what} cannot be the path of a file; remove or rename that object", key)
