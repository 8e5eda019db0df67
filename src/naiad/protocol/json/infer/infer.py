"""HTTP inference bodies: JSON, or a JSON header with a binary tail, to requests; responses to bodies."""

from collections.abc import Sequence
from typing import Any

from naiad.core.errors import excerpt, invalid_argument
from naiad.core.limits.bounded_cache import BoundedCache
from naiad.core.limits.request_limits import LimitsOf, RequestLimits, check_dims, unlimited
from naiad.core.request import RequestHeader
from naiad.core.slices import Slices, finish
from naiad.core.tensor import Buffer
from naiad.protocol.header_memory import HeaderMemory
from naiad.protocol.json.document import SHORT_BYTES, LongArray, LongString, read_document
from naiad.protocol.json.infer.binary import TailLayout
from naiad.protocol.json.infer.header import InputData, JsonRequest, decode_long, decode_request
from naiad.protocol.json.infer.json_template import JsonTemplate, cut, learn
from naiad.protocol.json.infer.long_data import decode_long_string
from naiad.protocol.json.tree import JsonObject, parse_infer_document

Decoded = tuple[RequestHeader, str, Sequence[Buffer]]

_ID_PREFIXES = (b'{"id":"', b'{"id": "')
_FIRST_PRINTED = 0x20
"""Bytes below it are control characters, which no JSON string contains."""
_MAX_ENTRY_BYTES = 8192
"""Limit of the JSON of one cached header; the objects made of it take about ten times as much."""
_MAX_CACHE_BYTES = 2 << 20
"""Limit of the JSON of all headers in one of the caches."""
_VIEW_LIMIT_BYTES = 16384
"""A binary tail up to this size is sliced as bytes, which is cheaper than views; larger tails are not copied."""
_TEMPLATE_LIMIT_BYTES = 16384
"""Longer documents are mostly data and are parsed at once, or in slices beyond `SHORT_BYTES`."""
_MAX_LONG_VALUE_BYTES = 8 << 20
"""Limit of a string that is not tensor data."""


class InferJsonDecoder:
    """Decodes inference bodies and caches the headers of repeated requests.

    Clients with binary data repeat their JSON with new data after it: such a request costs one look-up of its JSON
    bytes and the slicing of its tail. Clients with data in their JSON repeat the text around it: such a request costs
    one look-up and the parsing of its arrays. All other JSON headers are cached by their meaning. Only headers that
    the engine has admitted are cached, see `HeaderMemory`.
    """

    def __init__(self, limits_of: LimitsOf = unlimited, *, cached_headers: int = 1024) -> None:
        self._limits_of = limits_of

        def cache() -> BoundedCache[Any, Any]:
            return BoundedCache(
                max_entries=cached_headers, max_bytes=_MAX_CACHE_BYTES, max_entry_bytes=_MAX_ENTRY_BYTES
            )

        self._memory = HeaderMemory()
        self._layouts: BoundedCache[tuple[str, str, bytes], TailLayout] = cache()
        self._templates: BoundedCache[tuple[str, str, bytes], JsonTemplate] = cache()
        self._recent: BoundedCache[tuple[str, str], JsonTemplate] = cache()
        """The template that the last JSON of a model had; the next is likely to have the same."""
        self._headers: BoundedCache[object, RequestHeader] = cache()

    def decode(self, model_name: str, model_version: str, body: Buffer, json_length: int | None) -> Decoded:
        """Return header, request id and one buffer per input.

        `json_length` is the value of Inference-Header-Content-Length; None if the whole body is JSON. Raises
        InferError with Triton's codes and texts.
        """
        if json_length is None:
            return self._decode_whole(model_name, model_version, body)
        # hot: bench/micro_http1.py
        if not 0 < json_length <= len(body):
            raise invalid_argument(f"inference header size should be in range (0, {len(body)}), got: {json_length}")
        raw_id, text = None, bytes(body[:json_length])
        if text.startswith(_ID_PREFIXES):
            raw_id, text = _cut_id(text)
        layout = self._layouts.get((model_name, model_version, text))
        if layout is None:
            if json_length > SHORT_BYTES:
                return finish(self.decode_in_slices(model_name, model_version, body, json_length))
            layout = self._learn(model_name, model_version, text)
        is_short = type(body) is bytes and len(body) <= _VIEW_LIMIT_BYTES
        tail = body[json_length:] if is_short else memoryview(body)[json_length:]
        if len(tail) != layout.tail_bytes:
            raise layout.wrong_size(len(tail))
        data = layout.gather(tail) if layout.cut is None else layout.cut(tail)
        if raw_id is not None:
            return layout.header, _decode_id(raw_id), data
        return layout.header, layout.request_id, data

    def decode_in_slices(
        self, model_name: str, model_version: str, body: Buffer, json_length: int | None
    ) -> Slices[Decoded]:
        """Return the same as `decode`; yields about every millisecond while it reads long JSON."""
        size = len(body) if json_length is None else json_length
        if not SHORT_BYTES < size <= len(body):
            return self.decode(model_name, model_version, body, json_length)
        limits = self._limits_of(model_name, model_version)
        tree = yield from _read_infer_document(memoryview(body)[:size], limits)
        yield  # the first piece of data is a slice of its own
        request = decode_request(model_name, model_version, tree, limits)
        data: list[InputData] = []
        for position, (spec, source) in enumerate(zip(request.header.inputs, request.data, strict=True)):
            if source.long is not None:
                nan_is_null = request.header.nan_is_null
                raw = yield from decode_long(spec, source, position, nan_is_null=nan_is_null)
                data.append(InputData(inline=raw))
            else:
                data.append(source)
        request = JsonRequest(request.header, request.id, data)
        if json_length is None:
            return request.header, request.id, _inline_data(request)
        layout = TailLayout(request.header, request.id, data)
        tail = memoryview(body)[size:]
        if len(tail) != layout.tail_bytes:
            raise layout.wrong_size(len(tail))
        return request.header, request.id, layout.gather(tail)

    def _learn(self, model_name: str, model_version: str, text: bytes) -> TailLayout:
        self._memory.settle()
        key = (model_name, model_version, text)
        layout = self._layouts.get(key)
        if layout is not None:
            return layout
        limits = self._limits_of(model_name, model_version)
        request = decode_request(model_name, model_version, parse_infer_document(text, limits), limits)
        layout = TailLayout(self._intern(request.header, len(text)), request.id, request.data)
        self._memory.propose(layout.header, self._layouts, key, layout, len(text))
        return layout

    def _decode_whole(self, model_name: str, model_version: str, body: Buffer) -> Decoded:
        if len(body) > SHORT_BYTES:
            return finish(self.decode_in_slices(model_name, model_version, body, None))
        if len(body) > _TEMPLATE_LIMIT_BYTES:
            limits = self._limits_of(model_name, model_version)
            request = decode_request(model_name, model_version, parse_infer_document(body, limits), limits)
            return request.header, request.id, _inline_data(request)
        # hot: bench/micro_http1.py
        raw_id, text = None, bytes(body)
        if text.startswith(_ID_PREFIXES):
            raw_id, text = _cut_id(text)
        template = self._recent.get((model_name, model_version))
        data = None if template is None else template.read(text)
        if template is None or data is None:
            return self._decode_cut(model_name, model_version, bytes(body), text, raw_id)
        return template.header, template.request_id if raw_id is None else _decode_id(raw_id), data

    def _decode_cut(
        self, model_name: str, model_version: str, body: bytes, text: bytes, raw_id: bytes | None
    ) -> Decoded:
        """Return the request of a document that the latest template of its model does not fit."""
        around, pieces = cut(text)
        key = (model_name, model_version, around)
        template = self._templates.get(key)
        if template is not None:
            data: Sequence[Buffer] | None = template.read(text)
            if data is None:
                data = template.fill(pieces)
            else:
                self._recent.remember(key[:2], template, len(around))
            if data is not None:
                return template.header, template.request_id if raw_id is None else _decode_id(raw_id), data
        return self._decode_unfamiliar(key, body, pieces, has_cut_id=raw_id is not None)

    def _decode_unfamiliar(
        self, key: tuple[str, str, bytes], body: bytes, pieces: list[bytes], *, has_cut_id: bool
    ) -> Decoded:
        model_name, model_version, around = key
        self._memory.settle()
        limits = self._limits_of(model_name, model_version)
        request = decode_request(model_name, model_version, parse_infer_document(body, limits), limits)
        header, data = self._intern(request.header, len(around)), _inline_data(request)
        # A template has no id of its own when the id was cut out, but the JSON may have a second one.
        if not has_cut_id or b'"id"' not in around:
            template = learn(request, header, around, pieces, has_cut_id=has_cut_id)
            if template is not None:
                self._memory.propose(header, self._templates, key, template, len(around))
        return header, request.id, data

    def _intern(self, header: RequestHeader, size: int) -> RequestHeader:
        """Return the cached header with the same meaning, if any; `size` is the length of its JSON."""
        if size > _MAX_ENTRY_BYTES:
            return header
        key = (
            header.model_name,
            header.model_version,
            header.inputs,
            header.outputs,
            # True == 1 == 1.0, but they are different parameter values.
            tuple([(name, value, type(value)) for name, value in header.parameters.items()]),
            header.priority,
            header.timeout_us,
            header.sequence_id,
            header.sequence_start,
            header.sequence_end,
            header.binary_output_default,
            header.nan_is_null,
            tuple(header.shared_memory.items()),
        )
        known = self._headers.get(key)
        if known is not None:
            return known
        self._memory.propose(header, self._headers, key, header, size)
        return header


def _read_infer_document(text: memoryview, limits: RequestLimits) -> Slices[JsonObject]:
    """Return the members of a long inference request that have a meaning."""
    members = yield from read_document(text, limits.most_tensors)
    if type(members) is not tuple:
        return {}  # Triton: a value that is not an object has no members.
    tree = _first_values(members)
    inputs, outputs = tree.get("inputs"), tree.get("outputs")
    if isinstance(inputs, list):
        limits.check_inputs(len(inputs))
        entries = []
        for entry in inputs:
            entries.append((yield from _plain_input(entry)))
        tree["inputs"] = entries
    if isinstance(outputs, list):
        limits.check_outputs(len(outputs))
        tree["outputs"] = [_plain(entry) for entry in outputs]
    for name in ("id", "parameters"):
        if name in tree:
            tree[name] = yield from _short(_plain(tree[name]))
    return tree


def _plain_input(entry: Any) -> Slices[Any]:
    if type(entry) is not tuple:
        return entry
    plain = _first_values(entry)
    shape = plain.get("shape")
    if isinstance(shape, LongArray):
        check_dims(str(plain.get("name", "")), shape.length)
    for name in ("name", "datatype", "parameters"):
        if name in plain:
            plain[name] = yield from _short(_plain(plain[name]))
    return plain


def _short(value: Any) -> Slices[Any]:
    """Return a value, or an object of values, with its long strings decoded."""
    if isinstance(value, dict):
        plain: dict[str, Any] = {}
        for name, each in value.items():
            plain[name] = yield from _short(each)
        return plain
    if not isinstance(value, LongString):
        return value
    size = value.end - value.start
    if size > _MAX_LONG_VALUE_BYTES:
        raise invalid_argument(
            f"a string of the request JSON that is not tensor data has {size} bytes; at most "
            f"{_MAX_LONG_VALUE_BYTES} are allowed"
        )
    text = yield from decode_long_string(value)
    return text.decode()


def _first_values(members: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """Return members as a dictionary; of members with the same name the first counts, as in short documents."""
    return dict(reversed(members))


def _plain(value: Any) -> Any:
    """Return objects as dictionaries."""
    if type(value) is tuple:
        return {name: _plain(each) for name, each in _first_values(value).items()}
    return [_plain(each) for each in value] if type(value) is list else value


def _cut_id(text: bytes) -> tuple[bytes | None, bytes]:
    """Return the request id of a document as written, and the document without it.

    Ids differ from request to request. If the id comes first, as stock clients write it, and has no escapes, the rest
    is a document of its own. Otherwise returns None and the text itself.
    """
    if not text.startswith(_ID_PREFIXES):
        return None, text
    start = text.find(b'"', 5) + 1
    end = text.find(b'"', start)
    raw = text[start:end]
    if text[end : end + 2] != b'",' or b"\\" in raw or (raw and min(raw) < _FIRST_PRINTED):
        return None, text
    return raw, b"{" + text[end + 2 :]


def leading_id(text: bytes) -> str:
    """Return the request id at the beginning of a document; "" if it begins with another member."""
    raw, _ = _cut_id(text)
    return "" if raw is None else raw.decode("utf-8", "replace")


def _inline_data(request: JsonRequest) -> list[Buffer]:
    data: list[Buffer] = []
    for spec, source in zip(request.header.inputs, request.data, strict=True):
        if source.tail_bytes:
            raise invalid_argument(
                f"unexpected size for input '{excerpt(spec.name)}', expecting {source.tail_bytes} additional bytes "
                f"for model '{request.header.model_name}'; got none, expected them after the JSON: send the header "
                "Inference-Header-Content-Length with the length of the JSON"
            )
        data.append(source.inline if source.inline is not None else b"")
    return data


def _decode_id(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise invalid_argument(f"request 'id' is not valid UTF-8 at byte {error.start}") from None
