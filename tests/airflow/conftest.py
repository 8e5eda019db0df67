"""Airflow with a database of its own in SQLite, and a server whose repository the tests fill."""

import logging
import os
import tempfile
from pathlib import Path

# Airflow reads these when it is imported.
HOME = Path(tempfile.mkdtemp(prefix="naiad-airflow-"))
os.environ |= {
    "AIRFLOW_HOME": str(HOME),
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{HOME}/airflow.db",
    "AIRFLOW__CORE__DAGS_FOLDER": str(Path(__file__).parents[2] / "examples/airflow"),
    "NO_PROXY": "127.0.0.1,localhost",
}

import pytest  # noqa: E402

from support.server_process import serving  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def database():
    from airflow.utils.db import initdb

    level = logging.root.manager.disable
    logging.disable(logging.INFO)
    initdb()
    logging.disable(level)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "log"
    with serving(log, f"--model-repository={repository}", "--model-control-mode=explicit") as running:
        yield running


@pytest.fixture
def connection(server, monkeypatch):
    """The default connection, to the server of the module."""
    monkeypatch.setenv("AIRFLOW_CONN_NAIAD_DEFAULT", uri(server))


def uri(server, schema="http", **extra):
    import json

    host, port = (server.grpc_url if schema == "grpc" else server.http_url).rsplit(":", 1)
    return json.dumps({"conn_type": "naiad", "host": host, "port": int(port), "schema": schema, "extra": extra})
