"""Which paths answer in OpenAI's shape."""

import json

import pytest

from naiad.protocol.error_body import error_body


@pytest.mark.parametrize(
    "path",
    ["/v1/models", "/v1/models/first", "/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/nothing"],
)
def test_errors_of_openai_paths_are_objects(path: str) -> None:
    error = json.loads(error_body(path, 404, "no such model"))["error"]
    assert (error["message"], error["code"]) == ("no such model", "not_found")


@pytest.mark.parametrize(
    "path",
    ["/v2/models/first", "/v1", "/v1/endpoints/1/deployedModels/2", "/v1/models/first:predict", "/ping"],
)
def test_errors_of_other_paths_are_texts(path: str) -> None:
    assert json.loads(error_body(path, 403, "not allowed"))["error"] == "not allowed"
