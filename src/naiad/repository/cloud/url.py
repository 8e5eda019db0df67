"""URLs of repositories in object stores, in the forms that Triton takes."""

import re
from dataclasses import dataclass, field

from naiad.core.errors import invalid_argument

SCHEMES = ("s3", "gs", "as")
"""S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
# Triton: a host differs from a bucket by its port; after a protocol the port is optional.
_S3_ENDPOINT = re.compile(
    r"(?:(https?)://([^/]+)|([0-9A-Za-z.-]+:[0-9]+|\[[0-9A-Fa-f:]+\]:[0-9]+))(?:/(.*))?", re.DOTALL
)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_FORMS = {
    "s3": "s3://bucket/path, s3://host:port/bucket/path or s3://https://host:port/bucket/path",
    "gs": "gs://bucket/path",
    "as": "as://account/container/path",
}


@dataclass(frozen=True, slots=True)
class CloudUrl:
    """Where a repository lies in an object store."""

    text: str
    """As the operator wrote it, without a slash at the end."""
    scheme: str
    bucket: str
    """The bucket, or the container in Azure."""
    prefix: str = ""
    """The path of the repository in the bucket, without slashes around it."""
    endpoint: str = ""
    """Address of an S3 server that is not Amazon's: `http://host:port`."""
    account: str = ""
    """The storage account in Azure."""
    what: str = field(default="model repository", compare=False)
    """What the URL is, for messages."""

    @property
    def key(self) -> str:
        """What is the same for two URLs of the same place."""
        return "\0".join((self.scheme, self.endpoint, self.account, self.bucket, self.prefix))

    def of(self, key: str) -> str:
        """Return the URL of an object of the repository."""
        return f"{self.text}/{key}" if key else self.text


def is_cloud_url(text: str) -> bool:
    """Return whether a text is a URL. `C:` and names with colons are paths."""
    return _URL.fullmatch(text) is not None


def parse_cloud_url(text: str, what: str = "model repository") -> CloudUrl:
    """Return what a URL names; `what` it is stands before it in messages.

    Raises InferError(INVALID_ARG) for another scheme and a form that is not Triton's.
    """
    match = _URL.fullmatch(text)
    scheme = match[1] if match else ""
    if match is None or scheme not in SCHEMES:
        raise invalid_argument(
            f"{what} '{text}': unknown scheme '{scheme}'; known: " + ", ".join(f"{s}://" for s in SCHEMES)
        )
    endpoint, account, rest = "", "", match[2].strip("/")
    if scheme == "s3" and (named := _S3_ENDPOINT.fullmatch(rest)):
        endpoint, rest = f"{named[1] or 'http'}://{named[2] or named[3]}", named[4] or ""
    elif scheme == "as":
        account, _, rest = rest.partition("/")
    bucket, _, prefix = rest.strip("/").partition("/")
    prefix = prefix.strip("/")
    if not _BUCKET.fullmatch(bucket) or (scheme == "as" and not _BUCKET.fullmatch(account)):
        raise invalid_argument(f"{what} '{text}' names no bucket; write {_FORMS[scheme]}")
    if any(part in ("", ".", "..") for part in prefix.split("/")) and prefix:
        raise invalid_argument(f"{what} '{text}': '.', '..' and empty parts are refused in its path")
    return CloudUrl(text.rstrip("/"), scheme, bucket, prefix, endpoint, account, what)
