"""What obstore is told: its stores keep their settings, so no request is needed to see them."""

import importlib.util
from pathlib import Path

import pytest

from naiad.core.errors import ErrorCode, InferError
from naiad.repository.cloud.credentials import Credential, find_credential
from naiad.repository.cloud.provider import is_installed, make_client
from naiad.repository.cloud.url import parse_cloud_url
from naiad.repository.opening import CacheSettings, cache_directory

AZURE = parse_cloud_url("as://account/container/models")


def config(text: str, environ: dict[str, str], *, anonymous: bool = False):
    url = parse_cloud_url(text)
    client = make_client(url, find_credential(url, environ), environ, anonymous=anonymous)
    assert client.prefix == (url.prefix or None)
    return client.config


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


def test_s3_endpoints() -> None:
    key = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
    assert config("s3://h:1/b/p", key)["endpoint"] == "http://h:1"
    assert config("s3://b/p", {**key, "AWS_ENDPOINT_URL": "http://other:2"})["endpoint"] == "http://other:2"
    assert "endpoint" not in config("s3://b", key)


def test_s3_without_a_signature(tmp_path: Path) -> None:
    assert str(config("s3://b", {"HOME": str(tmp_path)}, anonymous=True)["skip_signature"]).lower() == "true"


def test_a_role_of_a_profile_needs_boto3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config"
    path.write_text("[profile ops]\nrole_arn = arn:aws:iam::1:role/x\n")
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "boto3" else find_spec(name))
    with pytest.raises(InferError, match=r"profile 'ops' has no aws_access_key_id; .* pip install boto3"):
        config("s3://b", {"AWS_PROFILE": "ops", "AWS_CONFIG_FILE": str(path), "HOME": str(tmp_path)})


def test_google() -> None:
    emulated = config("gs://b/p", {"STORAGE_EMULATOR_HOST": "localhost:4443"})
    assert emulated["base_url"] == "http://localhost:4443"


def test_a_google_file_without_a_credential_is_named(tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    path.write_text("{}")
    with pytest.raises(
        InferError, match=r"gs://b: GOOGLE_APPLICATION_CREDENTIALS .*key.json cannot be used"
    ) as caught:
        config("gs://b", {"GOOGLE_APPLICATION_CREDENTIALS": str(path)})
    assert caught.value.code is ErrorCode.INVALID_ARG


def test_azure_forms() -> None:
    text = "DefaultEndpointsProtocol=https;AccountName=other;AccountKey=a2V5;BlobEndpoint=https://x.example/;"
    named = config("as://account/container", {"AZURE_STORAGE_CONNECTION_STRING": text})
    assert (named["account_name"], named["account_key"]) == ("other", "a2V5")
    assert named["endpoint"] == "https://x.example"
    token = "AccountName=other;SharedAccessSignature=sv=2022&sig=abc%3D"
    assert "sas_key" in config("as://account/container", {"AZURE_STORAGE_CONNECTION_STRING": token})
    nobody = config("as://account/container", {})
    assert (nobody["account_name"], str(nobody["skip_signature"]).lower()) == ("account", "true")
    managed = config(
        "as://a/container", {"AZURE_STORAGE_AUTH_TYPE": "managed_identity", "AZURE_STORAGE_CLIENT_ID": "id"}
    )
    assert managed["client_id"] == "id"
    with pytest.raises(InferError, match="has neither AccountName nor BlobEndpoint"):
        config("as://account/container", {"AZURE_STORAGE_CONNECTION_STRING": "x"})


def test_the_key_of_a_file_is_not_mixed_with_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "stray")
    url = parse_cloud_url("s3://b")
    client = make_client(url, Credential("a file", "key", "secret"), {}, anonymous=False)
    assert client.credential_provider()["token"] is None


def test_the_missing_library_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InferError, match=r"needs the package obstore.*pip install 'naiad\[azure\]'"):
        is_installed(AZURE)


@pytest.mark.parametrize(
    ("directory", "environ", "expected"),
    [
        ("/flag", {"NAIAD_CACHE": "/naiad", "TRITON_AZURE_MOUNT_DIRECTORY": "/triton"}, "/flag"),
        ("", {"NAIAD_CACHE": "/naiad", "TRITON_AZURE_MOUNT_DIRECTORY": "/triton"}, "/triton"),
        ("", {"NAIAD_CACHE": "/naiad", "TRITON_AWS_MOUNT_DIRECTORY": "/triton"}, "/naiad/models"),
        ("", {"XDG_CACHE_HOME": "/xdg"}, "/xdg/naiad/models"),
    ],
)
def test_where_copies_go(directory: str, environ: dict[str, str], expected: str) -> None:
    assert str(cache_directory(AZURE, CacheSettings(directory), environ)) == expected
