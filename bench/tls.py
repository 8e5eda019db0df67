"""A certificate for servers that are measured over TLS."""

from pathlib import Path

import trustme


def certificate(directory: Path) -> tuple[Path, Path]:
    """Return the files of a certificate for this machine and of its key, made when they are new."""
    directory.mkdir(parents=True, exist_ok=True)
    cert, key = directory / "cert.pem", directory / "key.pem"
    if not key.exists():
        issued = trustme.CA().issue_cert("localhost", "127.0.0.1")
        for index, blob in enumerate(issued.cert_chain_pems):
            blob.write_to_path(str(cert), append=index > 0)
        issued.private_key_pem.write_to_path(str(key))
    return cert, key
