"""Fields of an Airflow connection become the address, headers and timeouts of a server."""

from types import SimpleNamespace

import pytest

from naiad.integrations.airflow.connection import ConnectionFieldError, endpoint_of


def connection(extra=None, **fields):
    defaults = {"conn_id": "models", "host": "localhost", "port": None, "schema": None, "password": None}
    return SimpleNamespace(**(defaults | fields), extra_dejson=extra or {})


@pytest.mark.parametrize(
    ("fields", "url"),
    [
        ({}, "http://localhost"),
        ({"port": 9000}, "http://localhost:9000"),
        ({"schema": "grpc", "port": 8001}, "grpc://localhost:8001"),
        ({"schema": "https", "host": "models.example"}, "https://models.example"),
        ({"host": "::1", "port": 8000}, "http://[::1]:8000"),
        ({"host": "[::1]", "port": 8000}, "http://[::1]:8000"),
        ({"host": "http+unix:///run/naiad", "port": 1}, "http+unix:///run/naiad"),
    ],
)
def test_address_is_host_port_and_schema(fields, url):
    assert endpoint_of(connection(**fields)).url == url


def test_password_and_extra_become_settings():
    extra = {"headers": {"x-key": "1"}, "timeout_s": "5", "connect_timeout_s": 2, "extra__naiad__old": "ignored"}
    found = endpoint_of(connection(extra, password="secret"))
    assert found.headers == {"Authorization": "Bearer secret", "x-key": "1"}
    assert (found.timeout_s, found.connect_timeout_s) == (5.0, 2.0)
    assert found.tls() is None


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"host": None}, "connection 'models' has no host; set it to the host name"),
        ({"schema": "ftp"}, "connection 'models': schema is 'ftp'; expected http, https, grpc, grpcs"),
        ({"extra": {"timeout": 3}}, "extra has the field 'timeout'; expected timeout_s,"),
        ({"extra": {"timeout_s": -1}}, "timeout_s in extra is -1; expected a number of seconds above 0"),
        ({"extra": {"timeout_s": "nan"}}, "timeout_s in extra is 'nan'"),
        ({"extra": {"headers": "x: y"}}, "headers in extra is 'x: y'; expected an object"),
        ({"extra": {"key_file": "k"}}, "extra has key_file without certificate_file"),
    ],
)
def test_wrong_field_is_named(fields, text):
    with pytest.raises(ConnectionFieldError) as raised:
        endpoint_of(connection(**fields))
    assert text in str(raised.value)


def test_missing_certificate_is_an_error():
    with pytest.raises(OSError, match="No such file"):
        endpoint_of(connection({"ca_file": "/no/such"}, schema="https")).tls()
