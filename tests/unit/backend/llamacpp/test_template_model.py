"""The small model with the chat template of another file."""

import struct

from naiad.backend.llamacpp.gguf_header import read_gguf_header
from naiad.backend.llamacpp.template_model import template_model

ENTRIES = {
    "general.architecture": "qwen2",
    "qwen2.context_length": 2048,
    "tokenizer.chat_template": "{{ bos_token }}ö",
    "tokenizer.chat_template.tool_use": "{{ tools }}",
}


def test_templates_and_marks_are_of_the_file(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(template_model(ENTRIES, "<begin>", "<end>"))
    header = read_gguf_header(path)
    assert (header.bos_token, header.eos_token) == ("<begin>", "<end>")
    kept = {name: text for name, text in header.entries.items() if "chat_template" in name}
    assert kept == {name: text for name, text in ENTRIES.items() if "chat_template" in name}
    assert header.architecture == "llama"
    assert "qwen2.context_length" not in header.entries


def test_file_without_marks_has_usual_ones(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(template_model(ENTRIES, "", ""))
    header = read_gguf_header(path)
    assert (header.bos_token, header.eos_token) == ("<s>", "</s>")


def test_file_has_the_data_of_all_tensors(tmp_path):
    content = template_model(ENTRIES, "", "")
    count = struct.unpack_from("<Q", content, 8)[0]
    assert count == 11
    # The widest one is the table of tokens: 260 vectors of 32 numbers.
    assert len(content) > 4 * 32 * (260 + 7 * 32)
