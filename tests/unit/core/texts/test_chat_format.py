import pytest

from naiad.core.texts.chat_format import CHAT_FORMATS, ChatMessage, chat_parts, format_chat, recognized_format

TEMPLATES = {
    "chatml": "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>'}}",
    "gemma": "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}",
    "llama3": "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>' }}",
    "mistral": "{{ '[INST] ' + message['content'] + ' [/INST]' }}",
    "": "{{ '### ' + message['content'] }}",
}


@pytest.mark.parametrize(("name", "template"), TEMPLATES.items())
def test_templates_are_recognized_by_their_marks(name, template):
    assert recognized_format(template) == name


@pytest.mark.parametrize("name", sorted(CHAT_FORMATS))
def test_prompts_of_recognized_formats_have_their_marks(name):
    prompt = format_chat(name, [ChatMessage("user", "Hi")])
    assert "Hi" in prompt
    assert recognized_format(prompt) == ("" if name == "plain" else name)


@pytest.mark.parametrize("name", sorted(CHAT_FORMATS))
def test_parts_are_the_prompt_with_its_contents(name):
    messages = [ChatMessage("system", "short"), ChatMessage("user", "Hi"), ChatMessage("assistant", "Yes")]
    parts = chat_parts(name, messages)
    assert "".join(part.text for part in parts) == format_chat(name, messages)
    contents = [part.text for part in parts if part.is_content]
    assert contents == (["short\n\nHi", "Yes"] if name in ("gemma", "mistral") else ["short", "Hi", "Yes"])
