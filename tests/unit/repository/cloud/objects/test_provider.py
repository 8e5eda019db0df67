"""The settings of obstore: its stores keep their settings, so no request is needed to see them."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from naiad.core.errors import ErrorCode, InferError
from naiad.repository.cloud.objects.credentials import Credential, find_credential
from naiad.repository.cloud.objects.provider import is_installed, make_client
from naiad.repository.cloud.url import parse_cloud_url
from naiad.repository.open_repository import CacheSettings, cache_directory

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


KEYS = "aws_access_key_id = k\naws_secret_access_key = s%x\naws_session_token = t\n"


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the profiles team and default where boto3 looks for them."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "keys").write_text(f"[team]\n{KEYS}[default]\n{KEYS.replace('= k', '= d')}")
    (tmp_path / "config").write_text("[profile team]\nregion = eu-west-1\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def s3_client(environ: dict[str, str]) -> Any:
    url = parse_cloud_url("s3://b")
    return make_client(url, find_credential(url, environ), environ, anonymous=False)


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find_spec(name))


@pytest.mark.usefixtures("profiles")
def test_profile_gives_key_and_region() -> None:
    client = s3_client({"AWS_PROFILE": "team"})
    found = client.credential_provider()
    assert (found["access_key_id"], found["secret_access_key"], found["token"]) == ("k", "s%x", "t")
    assert client.config["region"] == "eu-west-1"


@pytest.mark.usefixtures("profiles")
def test_default_profile_is_used_without_variables() -> None:
    assert s3_client({}).credential_provider()["access_key_id"] == "d"


@pytest.mark.usefixtures("profiles")
def test_missing_profile_is_named() -> None:
    with pytest.raises(InferError, match=r"AWS profile 'absent' gives no credential: .*absent.* could not be found"):
        s3_client({"AWS_PROFILE": "absent"})


@pytest.mark.usefixtures("profiles")
def test_broken_profile_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("no section")
    with pytest.raises(InferError, match=f"Unable to parse config file: {tmp_path}/config"):
        s3_client({"AWS_PROFILE": "team"})


@pytest.mark.usefixtures("profiles")
def test_no_credential_leaves_it_to_obstore(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("")
    assert s3_client({}).credential_provider is None


@pytest.mark.usefixtures("profiles")
def test_profiles_need_boto3(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "boto3")
    with pytest.raises(InferError, match=r"profile 'team' needs the package boto3: pip install 'naiad\[s3\]'"):
        s3_client({"AWS_PROFILE": "team"})
    assert s3_client({}).credential_provider is None


def test_google() -> None:
    emulated = config("gs://b/p", {"STORAGE_EMULATOR_HOST": "localhost:4443"})
    assert emulated["base_url"] == "http://localhost:4443"


def test_missing_google_file_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "key.json")
    with pytest.raises(InferError, match=f"GOOGLE_APPLICATION_CREDENTIALS {path} cannot be used: .*No such file"):
        config("gs://b", {"GOOGLE_APPLICATION_CREDENTIALS": path})


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
    absent = config("as://account/container", {})
    assert (absent["account_name"], str(absent["skip_signature"]).lower()) == ("account", "true")
    managed = config(
        "as://a/container", {"AZURE_STORAGE_AUTH_TYPE": "managed_identity", "AZURE_STORAGE_CLIENT_ID": "id"}
    )
    assert managed["client_id"] == "id"
    with pytest.raises(InferError, match="has neither AccountName nor BlobEndpoint"):
        config("as://account/container", {"AZURE_STORAGE_CONNECTION_STRING": "x"})


def test_file_credentials_are_not_mixed_with_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "stray")
    url = parse_cloud_url("s3://b")
    client = make_client(url, Credential("a file", "key", "secret"), {}, anonymous=False)
    assert client.credential_provider()["token"] is None


def test_the_missing_library_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "obstore")
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
