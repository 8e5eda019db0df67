"""Models of texts as tools: each task has its arguments, its body of the OpenAI API, and its result."""

import json
from typing import Any

import jsonschema
import orjson
import pytest

from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.openai_mapping import TASKS, OpenAiMapping
from naiad.core.errors import InferError
from naiad.protocol.mcp.openai_tool import describe_openai_model, openai_body, read_openai_answer

ARGUMENTS: dict[str, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "a"}], "temperature": 0.5},
    "completion": {"prompt": "a", "stop": ["."]},
    "embedding": {"input": ["a", "b"]},
    "rerank": {"query": "a", "documents": ["b", "c"], "top_n": 1},
}
ANSWERS: dict[str, dict[str, Any]] = {
    "chat": {"choices": [{"message": {"content": "b"}, "finish_reason": "stop"}]},
    "completion": {"choices": [{"text": "b", "finish_reason": "length"}]},
    "embedding": {"data": [{"embedding": [1.0, 2.0]}, {"embedding": [3.0, 4.0]}]},
    "rerank": {"results": [{"index": 1, "relevance_score": 0.5}]},
}


def mapping(task: str) -> OpenAiMapping:
    return OpenAiMapping(task, "IN", "OUT", "chatml" if task == "chat" else "")


@pytest.mark.parametrize("task", TASKS)
def test_each_task_has_arguments_and_results(task: str) -> None:
    tool = describe_openai_model("m", ModelConfig(name="m"), mapping(task))
    jsonschema.validate(ARGUMENTS[task], tool["inputSchema"])
    for name in tool["inputSchema"]["required"]:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(
                {key: ARGUMENTS[task][key] for key in ARGUMENTS[task] if key != name}, tool["inputSchema"]
            )
    assert json.loads(openai_body("m", mapping(task), ARGUMENTS[task])) == {**ARGUMENTS[task], "model": "m"}
    result = read_openai_answer(mapping(task), json.dumps(ANSWERS[task]).encode())
    jsonschema.validate(json.loads(orjson.dumps(result["structuredContent"])), tool["outputSchema"])
    assert not result["isError"]


@pytest.mark.parametrize("task", TASKS)
def test_other_arguments_are_refused(task: str) -> None:
    with pytest.raises(InferError, match="unknown argument 'stream'; known are"):
        openai_body("m", mapping(task), {**ARGUMENTS[task], "stream": True})


def test_many_vectors_are_shown_by_their_beginning() -> None:
    rows = [{"embedding": [float(row)] * 384} for row in range(64)]
    result = read_openai_answer(mapping("embedding"), json.dumps({"data": rows}).encode())
    found = json.loads(result["content"][0]["text"])
    assert (found["count"], found["dimensions"], len(found["embeddings"][63])) == (64, 384, 16)
    for task, member in (("embedding", "input"), ("rerank", "documents")):
        with pytest.raises(InferError, match="at most 64"):
            openai_body("m", mapping(task), {member: ["a"] * 65})
