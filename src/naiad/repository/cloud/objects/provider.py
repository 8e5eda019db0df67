"""Clients of the three providers: the settings of obstore for a URL and a credential."""

import datetime
import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any

from naiad.core.errors import invalid_argument, unsupported
from naiad.repository.cloud.objects.credentials import Credential
from naiad.repository.cloud.url import CloudUrl

_EXTRAS = {"s3": "s3", "gs": "gcs", "as": "azure"}
_CONNECT_TIMEOUT_S = 5
_SILENCE_TIMEOUT_S = 30
_REQUEST_TIMEOUT_S = 600
BRIEF_S = 5.0
"""Limit of a request, and of all attempts together, where something else can be used than an answer."""
_BOTO3_TTL = datetime.timedelta(minutes=10)
"""How long obstore uses a credential of boto3, which renews those that end within 10 to 15 minutes."""

FIXES = {
    "s3": "allow it s3:ListBucket on the bucket and s3:GetObject on its objects, or set AWS_ACCESS_KEY_ID, "
    "AWS_SECRET_ACCESS_KEY and AWS_DEFAULT_REGION or TRITON_CLOUD_CREDENTIAL_PATH to another",
    "gs": "grant it the role Storage Object Viewer on the bucket, or set GOOGLE_APPLICATION_CREDENTIALS or "
    "TRITON_CLOUD_CREDENTIAL_PATH to another",
    "as": "grant it the role Storage Blob Data Reader on the container, or set AZURE_STORAGE_ACCOUNT and "
    "AZURE_STORAGE_KEY or TRITON_CLOUD_CREDENTIAL_PATH to another",
}
"""By scheme: what to do when reading is denied."""
WRITE_FIXES = {
    "s3": "allow it s3:PutObject on the objects .*.rollout.json* of the repository, and s3:DeleteObject to put a "
    "damaged one aside",
    "gs": "grant it the role Storage Object User on the bucket",
    "as": "grant it the role Storage Blob Data Contributor on the container",
}
"""By scheme: what to do when writing is denied."""


JOB_FIXES = {
    "s3": "allow it s3:PutObject and s3:DeleteObject on the objects whose names begin with that of the output",
    "gs": "grant it the role Storage Object User on the bucket",
    "as": "grant it the role Storage Blob Data Contributor on the container",
}
"""By scheme: what to do when the output of a job is denied."""


def is_installed(url: CloudUrl) -> None:
    """Raises InferError(UNSUPPORTED) when the library that reads object stores is not there."""
    if importlib.util.find_spec("obstore") is None:
        raise unsupported(
            f"{url.what} '{url.text}' needs the package obstore, which is not installed: "
            f"pip install 'naiad[{_EXTRAS[url.scheme]}]'"
        )


def make_client(
    url: CloudUrl,
    credential: Credential,
    environ: Mapping[str, str],
    *,
    anonymous: bool,
    limit_s: float | None = None,
    retries: int = 0,
) -> Any:
    """Return the client for a URL; no request is made. Raises InferError for a credential that cannot be used.

    `limit_s`: a request ends after this, however slowly a store answers. `retries`: of a request, by the client.
    """
    limit_s = limit_s or _REQUEST_TIMEOUT_S
    stores = importlib.import_module("obstore.store")
    arguments: dict[str, Any] = {
        "prefix": url.prefix or None,
        # The caller usually counts attempts, so that the log has each of them.
        "retry_config": {"max_retries": retries, "retry_timeout": datetime.timedelta(seconds=limit_s)},
    }
    settings, endpoint = _SETTINGS[url.scheme](url, credential, environ)
    arguments |= settings
    arguments["client_options"] = {
        "connect_timeout": f"{_CONNECT_TIMEOUT_S} seconds",
        "read_timeout": f"{min(limit_s, _SILENCE_TIMEOUT_S):g} seconds",
        "timeout": f"{limit_s:g} seconds",
        "allow_http": endpoint.startswith("http://"),
    }
    if anonymous:
        arguments.pop("credential_provider", None)
        arguments["config"]["skip_signature"] = True
    try:
        return getattr(stores, _CLASSES[url.scheme])(url.bucket, **arguments)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise invalid_argument(f"{url.text}: {credential.source} cannot be used: {reason}") from error


_CLASSES = {"s3": "S3Store", "gs": "GCSStore", "as": "AzureStore"}


def _s3(url: CloudUrl, credential: Credential, environ: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    endpoint = url.endpoint or environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or ""
    config: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
    settings: dict[str, Any] = {"config": config}
    if credential.region:
        config["region"] = credential.region
    if credential.key_id:
        settings["credential_provider"] = _fixed(credential.key_id, credential.secret, credential.session_token)
    elif credential.profile or not credential.is_complete:
        provider = _of_boto3(url, credential.profile)
        if provider is not None:
            settings["credential_provider"] = provider
    return settings, endpoint


def _fixed(key_id: str, secret: str, session_token: str) -> Any:
    """Return what gives a key, so that no variable of the environment gets mixed into it."""
    answer = {
        "access_key_id": key_id,
        "secret_access_key": secret,
        "token": session_token or None,
        "expires_at": None,
    }
    return lambda: answer


def _of_boto3(url: CloudUrl, profile: str) -> Any:
    """Return boto3's chain of credentials, with a profile if one is named; None when it has no credential."""
    if importlib.util.find_spec("boto3") is None:
        if profile:
            raise unsupported(f"{url.text}: profile '{profile}' needs the package boto3: pip install 'naiad[s3]'")
        return None
    try:
        session = importlib.import_module("boto3.session").Session(profile_name=profile or None)
        if session.get_credentials() is None and not profile:
            return None
        return importlib.import_module("obstore.auth.boto3").Boto3CredentialProvider(session, ttl=_BOTO3_TTL)
    except Exception as error:
        raise invalid_argument(f"{url.text}: AWS profile '{profile}' gives no credential: {error}") from error


def _gs(url: CloudUrl, credential: Credential, environ: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    config: dict[str, Any] = {}
    emulator = environ.get("STORAGE_EMULATOR_HOST", "")
    if emulator:
        emulator = (emulator if "://" in emulator else f"http://{emulator}").rstrip("/")
        # An emulator knows no credentials, and asking the machine for its identity takes seconds where it has none.
        # For a write obstore does so even if it skips signatures.
        config["base_url"] = emulator
        return {"config": config, "credential_provider": lambda: {"token": "emulator", "expires_at": None}}, emulator
    if credential.path:
        config["application_credentials"] = credential.path
    return {"config": config}, ""


def _as(url: CloudUrl, credential: Credential, environ: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    config: dict[str, Any] = {}
    endpoint = environ.get("AZURE_STORAGE_ENDPOINT", "")
    account, key = credential.key_id, credential.secret
    if credential.connection_string:
        fields = _connection_string(credential.connection_string)
        account, key = fields.get("AccountName", account), fields.get("AccountKey", "")
        endpoint = fields.get("BlobEndpoint", endpoint)
        if token := fields.get("SharedAccessSignature"):
            config["sas_key"] = token
    config["account_name"] = account
    if endpoint:
        config["endpoint"] = endpoint.rstrip("/")
    if key:
        config["account_key"] = key
    elif credential.auth_type == "default":
        return {"config": config, "credential_provider": _azure_default(url)}, endpoint
    elif credential.auth_type and credential.client_id:
        config["client_id"] = credential.client_id
    elif not credential.auth_type and "sas_key" not in config:
        config["skip_signature"] = True
    return {"config": config}, endpoint


def _azure_default(url: CloudUrl) -> Any:
    if importlib.util.find_spec("azure.identity") is None:
        raise unsupported(f"{url.text}: auth_type 'default' needs azure-identity: pip install azure-identity aiohttp")
    return importlib.import_module("obstore.auth.azure").AzureCredentialProvider()


def _connection_string(text: str) -> dict[str, str]:
    """Return the fields of a connection string. Raises InferError(INVALID_ARG) when it is none."""
    fields = dict(part.split("=", 1) for part in text.strip().strip(";").split(";") if "=" in part)
    if not fields.keys() & {"AccountName", "BlobEndpoint"}:
        raise invalid_argument("AZURE_STORAGE_CONNECTION_STRING has neither AccountName nor BlobEndpoint")
    return fields


_SETTINGS = {"s3": _s3, "gs": _gs, "as": _as}
