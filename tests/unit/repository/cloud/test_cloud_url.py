import pytest

from naiad.core.errors import ErrorCode, InferError
from naiad.repository.cloud.url import is_cloud_url, parse_cloud_url


@pytest.mark.parametrize(
    ("text", "bucket", "prefix", "endpoint"),
    [
        ("s3://b/models", "b", "models", ""),
        ("s3://b", "b", "", ""),
        ("s3://b/", "b", "", ""),
        ("s3://b/a/c/", "b", "a/c", ""),
        ("s3://localhost:9000/b/p", "b", "p", "http://localhost:9000"),
        ("s3://10.0.0.1:80/b", "b", "", "http://10.0.0.1:80"),
        ("s3://[::1]:80/b", "b", "", "http://[::1]:80"),
        ("s3://http://minio:9000/b/p", "b", "p", "http://minio:9000"),
        ("s3://https://minio.example/b/p/q", "b", "p/q", "https://minio.example"),
        ("gs://b/p", "b", "p", ""),
    ],
)
def test_forms_of_urls(text: str, bucket: str, prefix: str, endpoint: str) -> None:
    url = parse_cloud_url(text)
    assert (url.bucket, url.prefix, url.endpoint) == (bucket, prefix, endpoint)
    assert url.of("m/1") == text.rstrip("/") + "/m/1"


def test_azure_has_an_account_before_the_container() -> None:
    url = parse_cloud_url("as://account/container/a/b")
    assert (url.account, url.bucket, url.prefix) == ("account", "container", "a/b")


def test_two_spellings_are_the_same_location() -> None:
    assert parse_cloud_url("s3://h:1/b/p").key == parse_cloud_url("s3://http://h:1/b/p/").key
    assert parse_cloud_url("s3://b/p").key != parse_cloud_url("gs://b/p").key


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hdfs://b/p", "unknown scheme 'hdfs'"),
        ("s3://", "names no bucket; write s3://bucket/path"),
        ("as://account", "names no bucket"),
        ("s3://b/a/../c", "are refused"),
        ("s3://b/a//c", "are refused"),
    ],
)
def test_what_is_no_repository_is_refused(text: str, message: str) -> None:
    with pytest.raises(InferError, match=message) as caught:
        parse_cloud_url(text)
    assert caught.value.code is ErrorCode.INVALID_ARG


@pytest.mark.parametrize("text", ["models", "/a/b", "./s3/x", "C:/models", "a:b"])
def test_paths_are_no_urls(text: str) -> None:
    assert not is_cloud_url(text)
