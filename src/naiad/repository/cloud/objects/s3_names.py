"""Names in a bucket that may be no paths; obstore returns nothing of a page with such a name.

The names directly below a URL of S3, by boto3.
"""

import importlib
import importlib.util
import itertools
import logging
from collections.abc import Mapping
from typing import Any

from naiad.repository.cloud.objects.credentials import Credential
from naiad.repository.cloud.url import CloudUrl

_log = logging.getLogger(__name__)


def names_below(
    url: CloudUrl, credential: Credential, environ: Mapping[str, str], *, anonymous: bool
) -> tuple[list[str], list[str]] | None:
    """Return the names of directories and of objects, also those that are no paths; None without an answer of boto3.

    That is for other stores than S3, without boto3, and if a request fails.
    """
    if url.scheme != "s3" or importlib.util.find_spec("boto3") is None:
        return None
    prefix = f"{url.prefix}/" if url.prefix else ""
    directories: list[str] = []
    objects: list[str] = []
    try:
        pages = _client(url, credential, environ, anonymous=anonymous).get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=url.bucket, Prefix=prefix, Delimiter="/"):
            directories += [each["Prefix"].removeprefix(prefix)[:-1] for each in page.get("CommonPrefixes", ())]
            objects += [each["Key"].removeprefix(prefix) for each in page.get("Contents", ())]
    except Exception as error:  # botocore makes classes of errors at run time
        _log.warning("listing %s with boto3 failed: %s", url.text, error)
        return None
    return sorted(directories), sorted(name for name in objects if name)


def _client(url: CloudUrl, credential: Credential, environ: Mapping[str, str], *, anonymous: bool) -> Any:
    settings: dict[str, Any] = {}
    if anonymous:
        botocore = importlib.import_module("botocore")
        settings["config"] = importlib.import_module("botocore.config").Config(signature_version=botocore.UNSIGNED)
    elif credential.key_id:
        settings["aws_access_key_id"] = credential.key_id
        settings["aws_secret_access_key"] = credential.secret
        settings["aws_session_token"] = credential.session_token or None
    endpoint = url.endpoint or environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    region = credential.region or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    session = importlib.import_module("boto3.session").Session(profile_name=credential.profile or None)
    return session.client("s3", endpoint_url=endpoint, region_name=region, **settings)


def is_path(part: str) -> bool:
    """Return whether a part of a key can be the name of a file or a directory."""
    return part not in ("", ".", "..") and part.isprintable()


def name_behind(name: str) -> str:
    """Return a name that is a path and comes, in the order of bytes, behind what lies in this directory."""
    printable = "".join(itertools.takewhile(str.isprintable, name))
    # A zero follows the slash. Behind a name with a control character a space follows what is before it.
    return f"{name}0" if printable == name else f"{printable} "
