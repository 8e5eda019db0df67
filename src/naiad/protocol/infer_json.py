"""HTTP inference bodies: JSON, or a JSON header with a binary tail, to requests; responses to bodies."""

from naiad.core.errors import invalid_argument
from naiad.core.request import RequestHeader
from naiad.core.tensor import Buffer
from naiad.protocol.infer_binary import TailLayout
from naiad.protocol.json_header import JsonRequest, decode_request
from naiad.protocol.json_template import JsonTemplate, cut, learn
from naiad.protocol.json_tree import parse_infer_document

Decoded = tuple[RequestHeader, str, list[Buffer]]

_ID_PREFIXES = (b'{"id":"', b'{"id": "')
_FIRST_PRINTED = 0x20
"""Bytes below it are control characters, which no JSON string holds."""
_CACHED_JSON_LIMIT_BYTES = 8192
_VIEW_LIMIT_BYTES = 16384
"""A binary tail up to this size is sliced as bytes, which is cheaper than views; beyond it nothing is copied."""
_TEMPLATE_LIMIT_BYTES = 16384
"""Longer documents have so much data that all of it is parsed in one go."""


class InferJsonDecoder:
    """Decodes inference bodies and interns the headers of those that repeat.

    Clients with binary data send the same JSON again and again with new data behind it: such a request costs one
    look-up by its JSON bytes and the slicing of its tail. Those with data in their JSON send the same text around
    it: such a request costs one look-up and the parsing of its arrays. Headers of other JSON requests are interned
    by their meaning. The caches are bounded; a full one forgets its oldest entry.
    """

    def __init__(self, *, cached_headers: int = 1024) -> None:
        self._cached_headers = cached_headers
        self._layouts: dict[tuple[str, str, bytes], TailLayout] = {}
        self._templates: dict[tuple[str, str, bytes], JsonTemplate] = {}
        self._headers: dict[object, RequestHeader] = {}

    def decode(self, model_name: str, model_version: str, body: Buffer, json_length: int | None) -> Decoded:
        """Return header, request id and one buffer per input.

        `json_length` is the value of Inference-Header-Content-Length; None when the whole body is JSON. Raises
        InferError with Triton's codes and texts.
        """
        if json_length is None:
            return self._decode_whole(model_name, model_version, body)
        # hot: bench/micro_http1.py
        if not 0 < json_length <= len(body):
            raise invalid_argument(f"inference header size should be in range (0, {len(body)}), got: {json_length}")
        raw_id, text = _cut_id(bytes(body[:json_length]))
        layout = self._layouts.get((model_name, model_version, text))
        if layout is None:
            layout = self._learn(model_name, model_version, text)
        if type(body) is bytes and len(body) <= _VIEW_LIMIT_BYTES:
            tail: Buffer = body[json_length:]
        else:
            tail = memoryview(body)[json_length:]
        if len(tail) != layout.tail_bytes:
            raise layout.wrong_size(len(tail))
        data = [tail[part] for part in layout.parts] if layout.is_plain else layout.gather(tail)
        if raw_id is not None:
            return layout.header, _decode_id(raw_id), data
        return layout.header, layout.request_id, data

    def _learn(self, model_name: str, model_version: str, text: bytes) -> TailLayout:
        request = decode_request(model_name, model_version, parse_infer_document(text))
        layout = TailLayout(self._intern(request.header), request.id, request.data)
        if len(text) <= _CACHED_JSON_LIMIT_BYTES:
            if len(self._layouts) >= self._cached_headers:
                del self._layouts[next(iter(self._layouts))]
            self._layouts[(model_name, model_version, text)] = layout
        return layout

    def _decode_whole(self, model_name: str, model_version: str, body: Buffer) -> Decoded:
        if len(body) > _TEMPLATE_LIMIT_BYTES:
            request = decode_request(model_name, model_version, parse_infer_document(body))
            return self._intern(request.header), request.id, _inline_data(request)
        # hot: bench/micro_http1.py
        body = bytes(body)
        raw_id, text = _cut_id(body)
        around, pieces = cut(text)
        key = (model_name, model_version, around)
        template = self._templates.get(key)
        if template is not None:
            data = template.fill(pieces)
            if data is not None:
                return template.header, template.request_id if raw_id is None else _decode_id(raw_id), data
        request = decode_request(model_name, model_version, parse_infer_document(body))
        header, data = self._intern(request.header), _inline_data(request)
        # An id that was cut out is not the template's; a second one may be.
        template = None if raw_id is not None and b'"id"' in around else learn(request, header, around, len(pieces))
        if template is not None:
            if len(self._templates) >= self._cached_headers:
                del self._templates[next(iter(self._templates))]
            self._templates[key] = template
        return header, request.id, data

    def _intern(self, header: RequestHeader) -> RequestHeader:
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
            tuple(header.shared_memory.items()),
        )
        known = self._headers.get(key)
        if known is not None:
            return known
        if len(self._headers) >= self._cached_headers:
            del self._headers[next(iter(self._headers))]
        self._headers[key] = header
        return header


def _cut_id(text: bytes) -> tuple[bytes | None, bytes]:
    """Return the request id of a document as it is written, and the document without it.

    An id differs from request to request. Where it comes first, as stock clients write it, and has no escapes, what
    remains is a document of its own. None and the text itself where it is not so.
    """
    if not text.startswith(_ID_PREFIXES):
        return None, text
    start = text.find(b'"', 5) + 1
    end = text.find(b'"', start)
    raw = text[start:end]
    if text[end : end + 2] != b'",' or b"\\" in raw or (raw and min(raw) < _FIRST_PRINTED):
        return None, text
    return raw, b"{" + text[end + 2 :]


def _inline_data(request: JsonRequest) -> list[Buffer]:
    data: list[Buffer] = []
    for spec, source in zip(request.header.inputs, request.data, strict=True):
        if source.tail_bytes:
            raise invalid_argument(
                f"unexpected size for input '{spec.name}', expecting {source.tail_bytes} additional bytes "
                f"for model '{request.header.model_name}'"
            )
        data.append(source.inline if source.inline is not None else b"")
    return data


def _decode_id(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise invalid_argument(f"request 'id' is not valid UTF-8 at byte {error.start}") from None
