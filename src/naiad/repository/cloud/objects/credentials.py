"""Credentials of object stores, found where Triton looks for them.

With `TRITON_CLOUD_CREDENTIAL_PATH` a file names them for each path; otherwise they come from the environment, and
what the provider's library finds by itself (profiles, identities of machines and pods).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from naiad.config.problem import nearest
from naiad.core.errors import InferError, invalid_argument
from naiad.repository.cloud.url import SCHEMES, CloudUrl

CREDENTIAL_PATH = "TRITON_CLOUD_CREDENTIAL_PATH"

_S3_FIELDS = ("secret_key", "key_id", "region", "session_token", "profile")
_AZURE_FIELDS = ("account_str", "account_key", "auth_type", "client_id")
_AUTH_TYPES = ("shared_key", "managed_identity", "default")


@dataclass(frozen=True, slots=True)
class Credential:
    """What gives access to a repository, independent of the library that uses it."""

    source: str
    """Where it was found and what it names; never a secret."""
    key_id: str = ""
    secret: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    region: str = ""
    profile: str = ""
    path: str = ""
    """A file with credentials of Google."""
    connection_string: str = field(default="", repr=False)
    auth_type: str = ""
    """How to authenticate with Azure without a key: managed_identity or default."""
    client_id: str = ""
    is_complete: bool = True
    """Whether obstore finds the rest by itself; otherwise boto3 looks for it, where it is installed."""


def find_credential(url: CloudUrl, environ: Mapping[str, str]) -> Credential:
    """Return the credential for a repository.

    Raises InferError(INVALID_ARG) when the credential file cannot be read, has mistakes or has none for the path.
    """
    path = environ.get(CREDENTIAL_PATH, "")
    return _of_file(url, Path(path), environ) if path else _ENVIRONMENT[url.scheme](url, environ)


# --- environment ----------------------------------------------------------------------------------------------------


def _s3_of_environment(url: CloudUrl, environ: Mapping[str, str]) -> Credential:
    # obstore and boto3 read the variables themselves, with all that belongs to them; this is for messages.
    key_id = environ.get("AWS_ACCESS_KEY_ID", "")
    if key_id:
        token = " with AWS_SESSION_TOKEN" if environ.get("AWS_SESSION_TOKEN") else ""
        return Credential(f"AWS_ACCESS_KEY_ID {_masked(key_id)} of the environment{token}")
    if profile := environ.get("AWS_PROFILE", ""):
        return Credential(f"AWS_PROFILE '{profile}' of the environment", profile=profile)
    if environ.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
        return Credential(f"the web identity for {environ.get('AWS_ROLE_ARN', 'AWS_ROLE_ARN, which is not set')}")
    return Credential(
        "none of AWS_ACCESS_KEY_ID, AWS_PROFILE and AWS_WEB_IDENTITY_TOKEN_FILE is set, so the default profile or "
        "the machine's identity",
        is_complete=False,
    )


def _gs_of_environment(url: CloudUrl, environ: Mapping[str, str]) -> Credential:
    path = environ.get("GOOGLE_APPLICATION_CREDENTIALS", "")
    if path:
        return Credential(f"GOOGLE_APPLICATION_CREDENTIALS {path}", path=path)
    return Credential("GOOGLE_APPLICATION_CREDENTIALS is not set, so the default of the machine, or none")


def _azure_of_environment(url: CloudUrl, environ: Mapping[str, str]) -> Credential:
    account = environ.get("AZURE_STORAGE_ACCOUNT", "") or url.account
    auth_type = _auth_type(environ.get("AZURE_STORAGE_AUTH_TYPE", ""), "AZURE_STORAGE_AUTH_TYPE")
    if auth_type:
        return _identity(account, auth_type, environ.get("AZURE_STORAGE_CLIENT_ID", ""), "AZURE_STORAGE_AUTH_TYPE")
    if connection_string := environ.get("AZURE_STORAGE_CONNECTION_STRING", ""):
        return Credential("AZURE_STORAGE_CONNECTION_STRING", account, connection_string=connection_string)
    key = environ.get("AZURE_STORAGE_KEY", "")
    if key:
        return Credential(f"AZURE_STORAGE_KEY for account '{account}'", account, key)
    return Credential(f"AZURE_STORAGE_KEY is not set, so none, for account '{account}'", account)


_ENVIRONMENT: Mapping[str, Callable[[CloudUrl, Mapping[str, str]], Credential]] = {
    "s3": _s3_of_environment,
    "gs": _gs_of_environment,
    "as": _azure_of_environment,
}


# --- credential file ------------------------------------------------------------------------------------------------


def _of_file(url: CloudUrl, path: Path, environ: Mapping[str, str]) -> Credential:
    entries = _read_file(path).get(url.scheme, {})
    if not isinstance(entries, dict):
        raise _wrong(path, f"'{url.scheme}' must be an object of path prefixes")
    # Triton: the longest name that the path begins with.
    names = [name for name in entries if url.text.startswith(name)]
    if not names:
        raise invalid_argument(
            f"{CREDENTIAL_PATH} {path} has no credential for '{url.text}'; add an entry to '{url.scheme}' whose name "
            f'the path begins with, or one named "" for all paths'
        )
    name = max(names, key=len)
    source = f"entry '{name}' of '{url.scheme}' in {path}"
    return _ENTRIES[url.scheme](url, entries[name], path, source)


def _read_file(path: Path) -> dict[str, object]:
    try:
        content = orjson.loads(path.read_bytes())
    except OSError as error:
        raise invalid_argument(f"{CREDENTIAL_PATH} {path} cannot be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise _wrong(path, f"it is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise _wrong(path, "it must be an object with the members " + ", ".join(SCHEMES))
    return content


def _s3_of_entry(url: CloudUrl, entry: object, path: Path, source: str) -> Credential:
    values = _texts(entry, _S3_FIELDS, path, source)
    key_id, secret = values["key_id"], values["secret_key"]
    if bool(key_id) != bool(secret):
        raise _wrong(path, f"{source}: 'key_id' and 'secret_key' go together")
    source += f" (key {_masked(key_id)})" if key_id else ""
    return Credential(source, key_id, secret, values["session_token"], values["region"], values["profile"])


def _gs_of_entry(url: CloudUrl, entry: object, path: Path, source: str) -> Credential:
    if not isinstance(entry, str):
        raise _wrong(path, f"{source}: the value must be the path of a file with credentials")
    return Credential(f"{source} ({entry or 'the default of the machine'})", path=entry)


def _azure_of_entry(url: CloudUrl, entry: object, path: Path, source: str) -> Credential:
    values = _texts(entry, _AZURE_FIELDS, path, source)
    account = values["account_str"] or url.account
    auth_type = _auth_type(values["auth_type"], source)
    if auth_type:
        return _identity(account, auth_type, values["client_id"], source)
    return Credential(f"{source} (account '{account}')", account, values["account_key"])


_ENTRIES: Mapping[str, Callable[[CloudUrl, object, Path, str], Credential]] = {
    "s3": _s3_of_entry,
    "gs": _gs_of_entry,
    "as": _azure_of_entry,
}


def _texts(entry: object, known: tuple[str, ...], path: Path, source: str) -> dict[str, str]:
    if not isinstance(entry, dict):
        raise _wrong(path, f"{source}: the value must be an object with {', '.join(known)}")
    for name, value in entry.items():
        if name not in known:
            hint = nearest(name, known)
            raise _wrong(path, f"{source}: unknown member '{name}'" + (f", did you mean '{hint}'?" if hint else ""))
        if not isinstance(value, str):
            raise _wrong(path, f"{source}: '{name}' must be a string")
    return {name: entry.get(name, "") for name in known}


def _identity(account: str, auth_type: str, client_id: str, source: str) -> Credential:
    return Credential(
        f"{source} {auth_type} for account '{account}'", account, auth_type=auth_type, client_id=client_id
    )


def _auth_type(value: str, source: str) -> str:
    if value and value not in _AUTH_TYPES:
        raise invalid_argument(f"{source}: unknown way to authenticate '{value}'; known: {', '.join(_AUTH_TYPES)}")
    return "" if value == "shared_key" else value


def _wrong(path: Path, what: str) -> InferError:
    return invalid_argument(f"{CREDENTIAL_PATH} {path}: {what}")


def _masked(key_id: str) -> str:
    """Return enough of a key's name to recognize it."""
    return f"...{key_id[-4:]}" if len(key_id) > 8 else "(set)"
