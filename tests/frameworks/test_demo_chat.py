"""`naiad demo chat` over a few pages: real weights, one server, and the same pipeline by the client of OpenAI."""

import io

import openai
import pytest
from rich.console import Console

from naiad.tools.demo.chat import show_chat
from naiad.tools.demo.demo_server import DemoSettings

PAGES = {
    "queues": "# Queues\n\nThe parameter `max_queue_size` limits how many requests wait in the queue of a model.",
    "streams": "# Streams\n\nA decoupled model sends any number of responses for a request, at any time.",
    "keys": "# API keys\n\nThe server reads the keys of its clients from the file of the flag `--api-key-file`.",
    "index": "# naiad\n\nAn inference server in one Python package, compatible with Triton.",
}
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def pages(tmp_path, monkeypatch):
    folder = tmp_path / "pages"
    folder.mkdir()
    for name, text in PAGES.items():
        (folder / f"{name}.md").write_text(text)
    monkeypatch.setattr(show_chat, "documentation", lambda: folder)
    return folder


def test_answers_come_from_the_pages(tmp_path, pages, monkeypatch):
    """While the server runs, the client of OpenAI gets the same answer in pieces."""
    asked = {}

    async def ask_and_chat(running, question, console):
        await original(running, question, console)
        asked.update(chat(running.http_url, question))

    original = show_chat._ask
    monkeypatch.setattr(show_chat, "_ask", ask_and_chat)
    printed = io.StringIO()
    settings = DemoSettings(tmp_path / "models", ready_within_s=600)
    question = "How many responses does a decoupled model send?"
    assert show_chat.run(settings, Console(file=printed, width=160), question) == 0
    text = printed.getvalue()
    assert "4 passages" in text
    sources = text.partition("From:")[2].split("\n")
    assert sources[1].strip() == "Streams"
    assert asked["models"] == ["docs_chat", "minilm", "smollm2"]
    assert " ".join(asked["answer"].split()) in " ".join(text.split())
    assert asked["finish_reason"] in ("stop", "length")
    assert asked["usage"].prompt_tokens > 60


def chat(address, question):
    with openai.OpenAI(base_url=f"http://{address}/v1", api_key="none", max_retries=0, timeout=600) as client:
        models = sorted(each.id for each in client.models.list())
        messages = [{"role": "user", "content": question}]
        stream = client.chat.completions.create(
            model="docs_chat", messages=messages, stream=True, stream_options={"include_usage": True}
        )
        *pieces, last = list(stream)
        answer = "".join(piece.choices[0].delta.content or "" for piece in pieces)
        reason = pieces[-1].choices[0].finish_reason
    return {"models": models, "answer": answer, "finish_reason": reason, "usage": last.usage}
