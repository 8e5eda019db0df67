"""The examples of pages do what the pages say: files, client and output are taken from there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import naiad

SOURCE = Path(naiad.__file__).parents[1]
DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
PAGES = {
    "scheduling": [],
    "sequences": [],
    "ensembles": [],
    "response-cache": ["--cache-config=local,size=1000000"],
    "rate-limiter": ["--rate-limit=execution_count"],
    "padding": [],
    "bls": [],
    "ragged-batching": [],
    "custom-batching": [],
    "client": [],
}


def blocks_of(page: str) -> dict[str, str]:
    """Return the blocks of the section `Example` by their titles."""
    text = (DOCS / f"{page}.md").read_text()
    section = re.split(r"^#+ Example$", text, flags=re.MULTILINE)[1]
    return dict(BLOCK.findall(re.split(r"^#+ ", section, flags=re.MULTILINE)[0]))


@pytest.mark.parametrize("page", PAGES)
def test_an_example_does_what_its_page_says(tmp_path: Path, start_server, page: str) -> None:
    blocks = blocks_of(page)
    for title, content in blocks.items():
        if title.startswith("models/"):
            (tmp_path / title).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / title).write_text(content)
    for model in (tmp_path / "models").iterdir():
        (model / "1").mkdir(exist_ok=True)
    server = start_server(tmp_path / "models", *PAGES[page])
    server.wait_ready()
    client = blocks["client.py"].replace("localhost:8001", server.grpc_url).replace("localhost:8000", server.http_url)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", client],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SOURCE) if page == "client" else ""},
    )
    assert (done.stdout, done.stderr) == (blocks["output"], "")
