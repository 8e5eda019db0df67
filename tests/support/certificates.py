"""Certificates made for one test run: an authority, the server's, a client's, and a stranger's."""

import ssl
from pathlib import Path

import trustme


class Certificates:
    """PEM files below `directory`; the server's certificate is for localhost, 127.0.0.1 and ::1."""

    def __init__(self, directory: Path) -> None:
        authority, stranger = trustme.CA(), trustme.CA()
        self.root = directory / "root.pem"
        authority.cert_pem.write_to_path(str(self.root))
        names = ("localhost", "127.0.0.1", "::1")
        self.server_cert, self.server_key = _write(authority.issue_cert(*names), directory, "server")
        self.client_cert, self.client_key = _write(authority.issue_cert("client@example"), directory, "client")
        self.strange_cert, self.strange_key = _write(stranger.issue_cert("client@example"), directory, "strange")

    def flags(self, protocol: str, *, mutual: bool = False) -> list[str]:
        """The server's flags for TLS."""
        flags = [
            f"--{protocol}-use-ssl=true",
            f"--{protocol}-server-cert={self.server_cert}",
            f"--{protocol}-server-key={self.server_key}",
        ]
        return (
            [*flags, f"--{protocol}-use-ssl-mutual=true", f"--{protocol}-root-cert={self.root}"] if mutual else flags
        )

    def client_context(self, *, shows: str = "", alpn: tuple[str, ...] = ()) -> ssl.SSLContext:
        """A context that trusts the authority and shows the certificate "client", "strange" or none."""
        context = ssl.create_default_context(cafile=str(self.root))
        if shows == "client":
            context.load_cert_chain(self.client_cert, self.client_key)
        elif shows == "strange":
            context.load_cert_chain(self.strange_cert, self.strange_key)
        if alpn:
            context.set_alpn_protocols(list(alpn))
        return context


def _write(issued: trustme.LeafCert, directory: Path, name: str) -> tuple[Path, Path]:
    cert, key = directory / f"{name}.pem", directory / f"{name}.key"
    for index, blob in enumerate(issued.cert_chain_pems):
        blob.write_to_path(str(cert), append=index > 0)
    issued.private_key_pem.write_to_path(str(key))
    return cert, key
