"""Object stores on this machine: moto's S3 behind a door that counts requests and can be made to fail."""

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from werkzeug.serving import WSGIRequestHandler, make_server

ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "AKIATESTING00001", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}

Door = Callable[[str, str], "tuple[int, str] | None"]
"""(method, path) to a status and a body in place of the store's answer, or None to let it answer."""


class _Quiet(WSGIRequestHandler):
    def log(self, *arguments: object) -> None:
        pass


class S3Server:
    """moto's S3 on a free port; `requests` are those that came, as `METHOD path?query`."""

    def __init__(self) -> None:
        # Here, because every process of the tests imports this file.
        import boto3
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

        self._moto = DomainDispatcherApplication(create_backend_app)
        self.requests: list[str] = []
        self.door: Door = lambda method, path: None
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=_Quiet)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self.client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            region_name="us-east-1",
        )

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.requests.append(f"{method} {path}?{environ['QUERY_STRING']}")
        refusal = self.door(method, path)
        if refusal is None:
            return self._moto(environ, start_response)
        status, body = refusal
        start_response(f"{status} X", [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
        return [body.encode()]

    def url(self, bucket: str, path: str = "models") -> str:
        return f"s3://{self.endpoint}/{bucket}/{path}"

    def upload(self, bucket: str, directory: Path, prefix: str = "models") -> None:
        """Make the bucket if need be, and put a directory's files below a prefix."""
        self.client.create_bucket(Bucket=bucket)
        for path in sorted(directory.rglob("*")):
            key = f"{prefix}/{path.relative_to(directory)}"
            if path.is_file():
                self.put(bucket, key, path.read_bytes())
            elif not any(path.iterdir()):
                self.put(bucket, f"{key}/", b"")

    def put(self, bucket: str, key: str, content: bytes) -> None:
        self.client.put_object(Bucket=bucket, Key=key, Body=content)

    def delete(self, bucket: str, prefix: str) -> None:
        found = self.client.list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", [])
        for item in found:
            self.client.delete_object(Bucket=bucket, Key=item["Key"])

    def gets(self) -> Sequence[str]:
        """The requests for objects; listings are not among them."""
        return [each for each in self.requests if each.startswith("GET ") and "list-type" not in each]

    def listings(self) -> Sequence[str]:
        return [each for each in self.requests if "list-type" in each]

    def forget(self) -> None:
        self.requests.clear()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)


def error_body(code: str, message: str) -> str:
    """What S3 says with a status of failure."""
    return f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'
