"""The files beside a decoder in Hugging Face's layout: tokenizer, window, end of text, defaults, chat template."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from naiad.backend.api import ModelContext
from naiad.backend.framework import Parameters
from naiad.backend.texts.generation.decoder_request import DecoderFacts
from naiad.backend.texts.generation.generation_request import NUMBERS
from naiad.backend.texts.generation.prompt_tokenizer import SPECIAL_TOKENS, PromptTokenizer
from naiad.backend.texts.json_directory import JsonDirectory
from naiad.core.errors import excerpt
from naiad.core.texts.chat_format import CHAT_FORMATS, recognized_format

_WINDOWS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length", "context_length")
"""Members of the settings with the most tokens of a text; which one depends on the model type."""
_SAMPLING = ("temperature", "top_k", "top_p", "min_p")
_DEFAULT_WINDOW = 4096
"""The most tokens of a prompt and its answer, unless the model has fewer or the owner says otherwise."""
_MAX_WINDOW = 1 << 20
_LEAST_WINDOW = 16
_TOP_K = (0, (1 << 31) - 1)
_TEMPLATE_FILE = "chat_template.jinja"


class GenerationDirectory(JsonDirectory):
    """The files of one version of a decoder. All are optional; without a tokenizer it takes and makes tokens."""

    settings_file: ClassVar[str] = "config.json"
    defaults_file: ClassVar[str] = "generation_config.json"

    def __init__(self, context: ModelContext) -> None:
        """Raises InferError(INVALID_ARG) for files that cannot be read."""
        super().__init__(context, context.version_dir)
        self.settings: Mapping[str, Any] = self.read_settings()
        """What the model is."""
        self._generation: Mapping[str, Any] = self.read_defaults()
        self.tokenizer: Any = None
        """None without a tokenizer."""
        if (self.path / "tokenizer.json").is_file():
            self.tokenizer = tokenizer = self.plain_tokenizer()
            tokenizer.no_padding()
            tokenizer.no_truncation()

    def read_settings(self) -> Mapping[str, Any]:
        """Return what `settings_file` says of the model."""
        found: Mapping[str, Any] = self.read_json(self.settings_file, {})
        return found

    def read_defaults(self) -> Mapping[str, Any]:
        """Return what `defaults_file` says of ends and sampling."""
        found: Mapping[str, Any] = self.read_json(self.defaults_file, {})
        return found

    def window(self) -> int:
        """Return the most tokens of a text that the model knows; 0 if no file says it."""
        return next((size for name in _WINDOWS if (size := self.whole(self.settings_file, self.settings, name))), 0)

    def facts(self, parameters: Parameters, vocabulary: int) -> DecoderFacts:
        """Return what holds for all requests to a model that knows `vocabulary` tokens."""
        known = min(self.window() or _MAX_WINDOW, _MAX_WINDOW)
        window = parameters.count("context_tokens", min(known, _DEFAULT_WINDOW), maximum=known)
        if window < _LEAST_WINDOW:
            raise parameters.error("context_tokens", f"a number from {_LEAST_WINDOW} to {known}")
        return DecoderFacts(
            self.prompts(parameters),
            window,
            vocabulary,
            self.end_tokens(parameters, vocabulary),
            self.sampling_defaults(),
            parameters.count("max_tokens", window, maximum=window) or window,
        )

    def end_tokens(self, parameters: Parameters, vocabulary: int) -> frozenset[int]:
        """Return the tokens that end a text, by the parameter `eos_ids` or the files; all are below `vocabulary`."""
        if "eos_ids" in parameters:
            words = [word.strip() for word in parameters.text("eos_ids").split(",")]
            numbers = [int(word) if word.isascii() and word.isdecimal() and len(word) < 10 else -1 for word in words]
            if not all(0 <= number < vocabulary for number in numbers):
                raise parameters.error("eos_ids", f"numbers of tokens from 0 to {vocabulary - 1}, such as 2,32000")
            return frozenset(numbers)
        for name, content in ((self.defaults_file, self._generation), (self.settings_file, self.settings)):
            found = content.get("eos_token_id")
            numbers = found if isinstance(found, list) else [] if found is None else [found]
            if not all(type(number) is int and 0 <= number < vocabulary for number in numbers):
                raise self.error(
                    f"has 'eos_token_id' in {name} with {excerpt(repr(found))}; expected numbers of tokens from 0 to "
                    f"{vocabulary - 1}; {self.again}, or set the parameter 'eos_ids'"
                )
            if numbers:
                return frozenset(numbers)
        token = self.special_token("eos_token")
        number = self.tokenizer.token_to_id(token) if token and self.tokenizer is not None else None
        # A tokenizer may know more tokens than the model, which does not make them.
        return frozenset() if number is None or number >= vocabulary else frozenset((number,))

    def sampling_defaults(self) -> dict[str, Any]:
        """Return sampling parameters for requests that give none, as the files say."""
        found: dict[str, Any] = {"temperature": 0}
        if self._generation.get("do_sample") is True:
            found = {"temperature": 1} | self._given(_SAMPLING)
        return found | self._given(("repetition_penalty",))

    def _given(self, names: Sequence[str]) -> dict[str, Any]:
        found = {name: self._generation[name] for name in names if self._generation.get(name) is not None}
        for name, value in found.items():
            low, high = NUMBERS.get(name, _TOP_K)
            kinds = (int, float) if name in NUMBERS else (int,)
            if type(value) not in kinds or not low <= value <= high:
                what = f"a {'whole ' if kinds == (int,) else ''}number from {low} to {high}"
                shown = excerpt(repr(value))
                raise self.error(f"has '{name}' in {self.defaults_file} with {shown}; expected {what}; {self.again}")
        return found

    def prompts(self, parameters: Parameters) -> PromptTokenizer | None:
        """Return what makes tokens of prompts and chats; None without a tokenizer."""
        chat_format = self.chat_format(parameters)
        special_tokens = parameters.choice("special_tokens", SPECIAL_TOKENS, "prompts")
        if self.tokenizer is None:
            return None
        return PromptTokenizer(self.tokenizer, chat_format, special_tokens)

    def chat_format(self, parameters: Parameters) -> str:
        """Return the name of the format of chats, by the parameter `template` or the Jinja template; or nothing."""
        if "template" in parameters:
            return parameters.choice("template", tuple(CHAT_FORMATS))
        return recognized_format(self._template())

    def _template(self) -> str:
        file = self.path / _TEMPLATE_FILE
        if file.is_file():
            try:
                return file.read_text()
            except ValueError as error:
                raise self.error(f"has a {_TEMPLATE_FILE} that is not UTF-8: {error}; {self.again}") from error
        found = self.read_json("tokenizer_config.json", {}).get("chat_template")
        if isinstance(found, list):
            named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
            found = named.get("default")
        return found if isinstance(found, str) else ""
