"""Airflow with a database of its own in SQLite, and a server whose repository the tests fill."""

import os
import tempfile
from pathlib import Path

# Airflow reads these when it is imported.
HOME = Path(tempfile.mkdtemp(prefix="naiad-airflow-"))
os.environ |= {
    "AIRFLOW_HOME": str(HOME),
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__DAGS_FOLDER": str(Path(__file__).parents[2] / "examples/airflow"),
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{HOME}/airflow.db",
    "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
    "NO_PROXY": "127.0.0.1,localhost",
}

import pytest  # noqa: E402

from support.airflow_connections import connection  # noqa: E402
from support.server_process import serving  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def database():
    from airflow.utils.db import initdb

    initdb()


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "log"
    with serving(log, f"--model-repository={repository}", "--model-control-mode=explicit") as running:
        yield running


@pytest.fixture(autouse=True)
def default_connection(server, monkeypatch):
    """`naiad_default` is the server of the module."""
    monkeypatch.setenv("AIRFLOW_CONN_NAIAD_DEFAULT", connection(server))
