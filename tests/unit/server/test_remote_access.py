"""Certificates and tokens for other servers."""

from pathlib import Path

import pytest

from naiad.config.remote_settings import RemoteAccess
from naiad.core.errors import InferError
from naiad.server.remote_access import tls_context, token_header
from support.certificates import Certificates


def test_a_token_is_the_line_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("key-7\n")
    assert token_header(RemoteAccess(token_file=str(tmp_path / "token"))) == {"authorization": "Bearer key-7"}
    assert token_header(RemoteAccess()) == {}


@pytest.mark.parametrize("content", [b"", b"\n", b"secret\r\nx: y", b"secret word", b"secret\xff", b"s" * 20_000])
def test_errors_do_not_show_what_a_file_has(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(InferError, match="has no token") as raised:
        token_header(RemoteAccess(token_file=str(tmp_path / "token")))
    assert "secret" not in raised.value.message


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    context = tls_context(RemoteAccess(str(made.root), str(made.client_cert), str(made.client_key)))
    assert context is not None
    assert tls_context(RemoteAccess()) is None
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("secret")
    for access, reason in (
        (RemoteAccess(ca_file=str(wrong)), "ca_file '.*wrong.pem' cannot be used"),
        (RemoteAccess(ca_file="/none"), "ca_file '/none' cannot be used: No such file"),
        (RemoteAccess("", str(made.client_cert), str(made.server_key)), "certificate_file .* cannot be used"),
    ):
        with pytest.raises(InferError, match=reason):
            tls_context(access)
    with pytest.raises(InferError, match="token_file '/none' cannot be read: No such file"):
        token_header(RemoteAccess(token_file="/none"))
