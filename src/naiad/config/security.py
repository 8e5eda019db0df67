"""Options that decide who may talk to the server, and how: TLS."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """TLS of one endpoint; files are PEM."""

    use_ssl: bool = False
    use_ssl_mutual: bool = False
    """Clients must show a certificate that the root certificate signed. Triton: asks for TLS by itself."""
    server_cert: str = ""
    """The certificate, followed by those between it and the root, if any."""
    server_key: str = ""
    root_cert: str = ""

    @property
    def is_on(self) -> bool:
        """Whether the endpoint speaks TLS."""
        return self.use_ssl or self.use_ssl_mutual

    def unused(self, protocol: str) -> list[str]:
        """Return the flags that were given but mean nothing without another. Triton: ignores them."""
        files = {"root-cert": self.root_cert} if not self.use_ssl_mutual else {}
        if not self.is_on:
            files |= {"server-cert": self.server_cert, "server-key": self.server_key}
        return [f"--{protocol}-{name}" for name, value in files.items() if value]

    def problem(self, protocol: str) -> str:
        """Return what is wrong with the combination of flags `--{protocol}-...`; empty when nothing is."""
        if not self.is_on:
            return ""
        asked = f"--{protocol}-use-ssl-mutual" if self.use_ssl_mutual else f"--{protocol}-use-ssl"
        missing = [
            f"--{protocol}-{name}"
            for name, value in (("server-cert", self.server_cert), ("server-key", self.server_key))
            if not value
        ]
        if self.use_ssl_mutual and not self.root_cert:
            missing.append(f"--{protocol}-root-cert")
        return f"{asked} needs {' and '.join(missing)}: the path of a PEM file" if missing else ""
