import pytest

from naiad.repository.cloud.objects.object_failures import ObjectFailure, classify


class GenericError(Exception):
    """As obstore names what it has no class for."""


class NotFoundError(Exception):
    pass


class PermissionDeniedError(Exception):
    pass


class InvalidPathError(Exception):
    pass


def answer(status: str, code: str = "", message: str = "") -> str:
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>" if code else ""
    return f"Generic S3 error: Error performing GET http://x - Server returned non-2xx status code: {status}: {body}"


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (
            GenericError(answer("404 Not Found", "NoSuchBucket", "gone")),
            ObjectFailure.MISSING,
            "HTTP 404 NoSuchBucket gone",
        ),
        (
            GenericError(answer("403 Forbidden", "AccessDenied", "no")),
            ObjectFailure.DENIED,
            "HTTP 403 AccessDenied no",
        ),
        (GenericError(answer("403 Forbidden")), ObjectFailure.DENIED, "HTTP 403 Forbidden"),
        (
            GenericError(answer("400 Bad Request", "ExpiredToken", "old")),
            ObjectFailure.DENIED,
            "HTTP 400 ExpiredToken old",
        ),
        (
            GenericError(answer("503 Service Unavailable", "SlowDown", "s")),
            ObjectFailure.PASSING,
            "HTTP 503 SlowDown s",
        ),
        (GenericError(answer("429 Too Many Requests")), ObjectFailure.PASSING, "HTTP 429 Too Many Requests"),
        (GenericError(answer("400 Bad Request")), ObjectFailure.OTHER, "HTTP 400 Bad Request"),
        (
            GenericError("GET http://x in 1s - HTTP error: error sending request"),
            ObjectFailure.PASSING,
            "error sending request",
        ),
        (NotFoundError("Object at location x not found"), ObjectFailure.MISSING, "Object at location x not found"),
        (PermissionDeniedError("no"), ObjectFailure.DENIED, "no"),
        (InvalidPathError("path '..'\n\nDebug"), ObjectFailure.BAD_KEY, "path '..'"),
        (ConnectionError("3 bytes came of 9"), ObjectFailure.PASSING, "3 bytes came of 9"),
        (
            GenericError(
                "Error performing PUT http://169.254.169.254/latest/api/token in 1s - HTTP error: timed out"
            ),
            ObjectFailure.NO_CREDENTIAL,
            "timed out",
        ),
        (ValueError("x"), ObjectFailure.OTHER, "x"),
        (ValueError(), ObjectFailure.OTHER, "no reason was given"),
    ],
)
def test_kinds_and_reasons(error: Exception, kind: ObjectFailure, text: str) -> None:
    failure = classify(error)
    assert (failure.kind, failure.text) == (kind, text)
