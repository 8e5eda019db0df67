"""Airflow connections to servers of tests, as the environment variables `AIRFLOW_CONN_...` have them."""

import json


def connection(server, schema="http", **fields):
    """Return the text of a connection to a server."""
    host, port = (server.grpc_url if schema == "grpc" else server.http_url).rsplit(":", 1)
    return json.dumps({"conn_type": "naiad", "host": host, "port": int(port), "schema": schema, **fields})
