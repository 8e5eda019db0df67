"""Credentials are found where Triton looks for them."""

import json
from pathlib import Path

import pytest

from naiad.core.errors import InferError
from naiad.repository.cloud.objects.credentials import Credential, find_credential
from naiad.repository.cloud.url import parse_cloud_url

S3 = parse_cloud_url("s3://bucket/team/models")
GS = parse_cloud_url("gs://bucket/models")
AZURE = parse_cloud_url("as://account/container/models")


def of_file(tmp_path: Path, content: object, url=S3) -> Credential:
    path = tmp_path / "credentials.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return find_credential(url, {"TRITON_CLOUD_CREDENTIAL_PATH": str(path), "AWS_ACCESS_KEY_ID": "ignored-key"})


class TestEnvironment:
    def test_s3_names_the_key_but_not_the_secret(self) -> None:
        found = find_credential(S3, {"AWS_ACCESS_KEY_ID": "AKIA12345678", "AWS_SECRET_ACCESS_KEY": "hidden"})
        assert "...5678" in found.source
        assert "hidden" not in repr(found)

    def test_s3_profile(self) -> None:
        assert find_credential(S3, {"AWS_PROFILE": "team"}).profile == "team"

    def test_s3_without_anything(self) -> None:
        assert not find_credential(S3, {}).is_complete

    def test_google(self) -> None:
        assert find_credential(GS, {"GOOGLE_APPLICATION_CREDENTIALS": "/key.json"}).path == "/key.json"
        assert find_credential(GS, {}).path == ""

    def test_azure(self) -> None:
        found = find_credential(AZURE, {"AZURE_STORAGE_ACCOUNT": "other", "AZURE_STORAGE_KEY": "hidden"})
        assert (found.key_id, found.secret) == ("other", "hidden")
        assert find_credential(AZURE, {}).key_id == "account"
        with pytest.raises(InferError, match="unknown way to authenticate 'magic'"):
            find_credential(AZURE, {"AZURE_STORAGE_AUTH_TYPE": "magic"})


class TestFile:
    def test_the_longest_prefix_counts(self, tmp_path: Path) -> None:
        entries = {"": {"profile": "all"}, "s3://bucket": {"profile": "bucket"}, "s3://bucket/team": {"profile": "t"}}
        assert of_file(tmp_path, {"s3": entries}).profile == "t"

    def test_all_members_of_s3(self, tmp_path: Path) -> None:
        entry = {"secret_key": "s", "key_id": "k", "region": "r", "session_token": "t", "profile": ""}
        found = of_file(tmp_path, {"s3": {"": entry}})
        assert (found.key_id, found.secret, found.region, found.session_token) == ("k", "s", "r", "t")

    def test_google_and_azure(self, tmp_path: Path) -> None:
        key = tmp_path / "key"
        key.write_text("{}")
        assert of_file(tmp_path, {"gs": {"": str(key)}}, GS).path == str(key)
        entry = {"account_str": "a", "account_key": "k"}
        found = of_file(tmp_path, {"as": {"": entry}}, AZURE)
        assert (found.key_id, found.secret) == ("a", "k")

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("{", "it is not JSON"),
            ([], "it must be an object"),
            ({"s3": []}, "must be an object of path prefixes"),
            ({"s3": {"s3://other": {}}}, "has no credential for 's3://bucket/team/models'"),
            ({"s3": {"": "x"}}, "the value must be an object with"),
            ({"s3": {"": {"keyid": "x"}}}, "unknown member 'keyid', did you mean 'key_id'"),
            ({"s3": {"": {"key_id": 3}}}, "'key_id' must be a string"),
            ({"s3": {"": {"key_id": "x"}}}, "'key_id' and 'secret_key' go together"),
        ],
    )
    def test_mistakes_are_named(self, tmp_path: Path, content: object, message: str) -> None:
        with pytest.raises(InferError, match=message):
            of_file(tmp_path, content)

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(InferError, match="cannot be read"):
            find_credential(S3, {"TRITON_CLOUD_CREDENTIAL_PATH": str(tmp_path / "none")})
