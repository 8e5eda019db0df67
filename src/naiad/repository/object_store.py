"""Objects of one repository in a cloud, through a file system of the fsspec family that is imported when needed.

Everything here blocks. Failures are told apart (away, denied, missing, passing), and passing ones are tried again.
"""

import base64
import importlib
import importlib.util
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from naiad.core.errors import InferError, internal, invalid_argument, not_found, unavailable, unsupported
from naiad.repository.cloud_failure import Failure, Kind, classify
from naiad.repository.cloud_url import CloudUrl
from naiad.repository.credentials import Credential

_log = logging.getLogger(__name__)

ATTEMPTS = 5
"""How often a request is made at most."""
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0
_CONNECT_TIMEOUT_S = 5
_READ_TIMEOUT_S = 60
_MAX_OBJECTS = 1_000_000
"""Objects that one repository may have; a listing of more is a wrong path."""
_PACKAGES = {"s3": ("s3fs", "s3"), "gs": ("gcsfs", "gcs"), "as": ("adlfs", "azure")}
"""By scheme: the package, and the extra of naiad that installs it."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as a listing tells of it."""

    key: str
    """Its name below the repository's path. The name of a directory has a slash at its end."""
    size_bytes: int = 0
    identity: str = ""
    """The same as long as its content is: a digest of the content where the provider knows one, or its ETag."""
    md5: str = ""
    """The digest of its content in base64, where the provider vouches for it."""

    @property
    def is_directory(self) -> bool:
        """Whether this only marks that a directory is there."""
        return self.key.endswith("/")


class ObjectStore:
    """Lists and fetches the objects below a URL."""

    def __init__(self, url: CloudUrl, credential: Credential, *, first_pause_s: float = _FIRST_PAUSE_S) -> None:
        """Nothing is connected to yet. Raises InferError(UNSUPPORTED) when the provider's package is not there."""
        package, extra = _PACKAGES[url.scheme]
        if importlib.util.find_spec(package) is None:
            raise unsupported(
                f"model repository '{url.text}' needs the package {package}, which is not installed: "
                f"pip install 'naiad[{extra}]'"
            )
        self.url = url
        self._credential = credential
        self._first_pause_s = first_pause_s
        self._lock = threading.Lock()
        self._filesystem: Any = None
        self._is_anonymous = False

    def connect(self) -> None:
        """Import the provider's package and make its client, which takes a while; no request is made."""
        self._connected()

    def list_objects(self, below: str = "") -> list[StoredObject]:
        """Return all objects whose keys are `below` or begin with it and a slash.

        Raises InferError: NOT_FOUND when the bucket is not there, and others that name the credential and the fix.
        """
        root = f"{self.url.root}/{below}" if below else self.url.root
        found = self._attempt(
            f"listing {self.url.of(below)}", lambda: self._connected().find(root, withdirs=True, detail=True)
        )
        if len(found) > _MAX_OBJECTS:
            raise invalid_argument(
                f"{self.url.text} has more than {_MAX_OBJECTS} objects; name the path of the repository in the bucket"
            )
        skip = len(self.url.root) + 1
        return [_stored(name[skip:], info) for name, info in found.items() if len(name) >= skip]

    def fetch(self, item: StoredObject, target: Path) -> None:
        """Bring an object's content to a file that is not there yet.

        Raises InferError: NOT_FOUND when it has vanished, UNAVAILABLE when it came incomplete time and again.
        """

        def get() -> None:
            target.unlink(missing_ok=True)
            self._connected().get_file(f"{self.url.root}/{item.key}", str(target))
            size_bytes = target.stat().st_size
            if size_bytes != item.size_bytes:
                raise ConnectionError(f"{size_bytes} bytes came of an object of {item.size_bytes} bytes")

        self._attempt(f"downloading {self.url.of(item.key)}", get)

    # --- attempts ---------------------------------------------------------------------------------------------------

    def _attempt(self, action: str, work: Callable[[], T]) -> T:
        """Do something that may fail in passing, a few times if need be. Raises InferError."""
        start_s = time.monotonic()
        attempt = 1
        while True:
            try:
                return work()
            except InferError:
                raise
            except Exception as error:
                failure = classify(error)
            if failure.kind is Kind.NO_CREDENTIAL and self._try_without_credential():
                continue
            if failure.kind is not Kind.PASSING or attempt == ATTEMPTS:
                raise self._refusal(action, failure, attempt, time.monotonic() - start_s)
            pause_s = min(_LONGEST_PAUSE_S, self._first_pause_s * 2 ** (attempt - 1)) * random.uniform(0.75, 1.25)
            _log.warning("%s failed, trying again in %.1f s: %s", action, pause_s, failure.text)
            attempt += 1
            time.sleep(pause_s)

    def _try_without_credential(self) -> bool:
        """Turn to what everybody may read; whether that was not done before."""
        with self._lock:
            if self._is_anonymous or self.url.scheme != "s3":
                return False
            self._is_anonymous = True
            self._filesystem = None
            return True

    def _refusal(self, action: str, failure: Failure, attempts: int, elapsed_s: float) -> InferError:
        source = self._credential.source
        if failure.kind is Kind.MISSING:
            return not_found(f"{action} failed: it is not there ({failure.text}); check bucket, path and region")
        if failure.kind in (Kind.DENIED, Kind.NO_CREDENTIAL):
            used = "no credential was found" if self._is_anonymous else f"credential used: {source}"
            return invalid_argument(
                f"{action} failed: access is denied ({failure.text}); {used}; {_FIXES[self.url.scheme]}"
            )
        if failure.kind is Kind.PASSING:
            return unavailable(
                f"{action} failed {attempts} times in {elapsed_s:.1f} s: {failure.text}; check that "
                f"{self.url.endpoint or 'the network and the endpoint'} can be reached from here"
            )
        return internal(f"{action} failed: {failure.text}; credential used: {source}")

    # --- file systems -----------------------------------------------------------------------------------------------

    def _connected(self) -> Any:
        with self._lock:
            if self._filesystem is None:
                module = importlib.import_module(_PACKAGES[self.url.scheme][0])
                options = _OPTIONS[self.url.scheme](self.url, self._credential)
                if self._is_anonymous:
                    options["anon"] = True
                # Nothing is kept between requests: what is asked is how things are now.
                options |= {"skip_instance_cache": True, "use_listings_cache": False}
                self._filesystem = getattr(module, _CLASSES[self.url.scheme])(**options)
                # Attempts are counted here, for all providers alike.
                self._filesystem.retries = 1
            return self._filesystem


_CLASSES = {"s3": "S3FileSystem", "gs": "GCSFileSystem", "as": "AzureBlobFileSystem"}
_FIXES = {
    "s3": "allow it s3:ListBucket on the bucket and s3:GetObject on its objects, or set AWS_ACCESS_KEY_ID, "
    "AWS_SECRET_ACCESS_KEY and AWS_DEFAULT_REGION or TRITON_CLOUD_CREDENTIAL_PATH to another",
    "gs": "grant it the role Storage Object Viewer on the bucket, or set GOOGLE_APPLICATION_CREDENTIALS or "
    "TRITON_CLOUD_CREDENTIAL_PATH to another",
    "as": "grant it the role Storage Blob Data Reader on the container, or set AZURE_STORAGE_ACCOUNT and "
    "AZURE_STORAGE_KEY or TRITON_CLOUD_CREDENTIAL_PATH to another",
}


def _s3_options(url: CloudUrl, credential: Credential) -> dict[str, Any]:
    config: dict[str, Any] = {
        "retries": {"max_attempts": 1},
        "connect_timeout": _CONNECT_TIMEOUT_S,
        "read_timeout": _READ_TIMEOUT_S,
    }
    if url.endpoint:
        config["s3"] = {"addressing_style": "path"}
    options: dict[str, Any] = {"config_kwargs": config}
    if url.endpoint:
        options["endpoint_url"] = url.endpoint
    if credential.region:
        options["client_kwargs"] = {"region_name": credential.region}
    if credential.key_id:
        options |= {"key": credential.key_id, "secret": credential.secret}
    if credential.session_token:
        options["token"] = credential.session_token
    if credential.profile and not credential.key_id:
        options["profile"] = credential.profile
    return options


def _gs_options(url: CloudUrl, credential: Credential) -> dict[str, Any]:
    if credential.path:
        return {"token": credential.path}
    # An emulator knows no credentials, and asking the machine for its identity takes seconds where it has none.
    return {"token": "anon"} if os.environ.get("STORAGE_EMULATOR_HOST") else {}


def _azure_options(url: CloudUrl, credential: Credential) -> dict[str, Any]:
    if credential.connection_string:
        return {"connection_string": credential.connection_string}
    options: dict[str, Any] = {"account_name": credential.key_id}
    if credential.auth_type:
        identity = importlib.import_module("azure.identity.aio")
        if credential.auth_type == "managed_identity":
            named = {"client_id": credential.client_id} if credential.client_id else {}
            options["credential"] = identity.ManagedIdentityCredential(**named)
        else:
            options["credential"] = identity.DefaultAzureCredential()
    elif credential.secret:
        options["account_key"] = credential.secret
    else:
        options["anon"] = True
    return options


_OPTIONS: Mapping[str, Callable[[CloudUrl, Credential], dict[str, Any]]] = {
    "s3": _s3_options,
    "gs": _gs_options,
    "as": _azure_options,
}


def _stored(key: str, info: Mapping[str, Any]) -> StoredObject:
    if info["type"] == "directory" or key.endswith("/"):
        return StoredObject(key if key.endswith("/") else key + "/")
    md5 = _md5_of(info)
    etag = str(info.get("ETag") or info.get("etag") or "").strip('"')
    return StoredObject(key, int(info["size"] or 0), md5 or etag or str(info.get("last_modified") or ""), md5)


def _md5_of(info: Mapping[str, Any]) -> str:
    """Return the content's digest in base64. That of S3 is left out: depending on encryption its ETag is another."""
    settings = info.get("content_settings")
    md5 = info.get("md5Hash") or (settings.get("content_md5") if isinstance(settings, Mapping) else None)
    if isinstance(md5, (bytes, bytearray)):
        return base64.b64encode(md5).decode()
    return str(md5 or "")
