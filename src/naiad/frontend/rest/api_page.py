"""The OpenAPI document, and the page for browsers that shows it.

The documents are made on a thread when they are requested, and the document of all models has at most `MAX_MODELS`.
"""

import functools
import hashlib
import logging
import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from naiad.core.errors import InferError, excerpt
from naiad.core.model import name_of
from naiad.engine.engine import Engine
from naiad.frontend.context import HttpContext
from naiad.frontend.long_work.thread_pool import RunInThread, run_at_once
from naiad.frontend.reply_headers import JSON_HEADERS
from naiad.frontend.router import Action, Router, respond_failure
from naiad.operations.models import API_PAGE, MODEL_OPENAPI, OPENAPI
from naiad.operations.operation import AnyOperation
from naiad.wire.header_fields import Headers

MAX_MODELS = 200
"""Limit of models in the document of the server; each model has a document of its own, too."""
_PAGE = Path(__file__).with_name("api_page.html")
_log = logging.getLogger(__name__)


class ApiPageRoutes:
    """The actions of `/docs` and `/openapi.json`."""

    def __init__(
        self, engine: Engine, operations: Sequence[AnyOperation], run_in_thread: RunInThread = run_at_once
    ) -> None:
        """`operations` are documented."""
        self._engine = engine
        self._operations = operations
        self._run_in_thread = run_in_thread
        self.router: Router | None = None
        """The router, for its access rule; set once it exists."""

    def actions(self) -> Mapping[AnyOperation, Action]:
        """Return the actions of operations."""
        return {
            API_PAGE: self._page,
            OPENAPI: self._document,
            MODEL_OPENAPI: self._model_document,
        }

    def _page(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        headers, page = _read_page()
        context.respond(200, headers, (page,))

    def _document(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        # Clients without access to the index of the repository get no names of models here either.
        lists_models = self.router is None or self.router.accepts("model-repository", context)
        self._respond(context, functools.partial(self._encode, self._ready_models if lists_models else list))

    def _model_document(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        model = arguments["model"]
        self._engine.views.model_metadata(model)  # raises for an unknown model
        self._respond(context, functools.partial(self._encode, lambda: [model]))

    def _respond(self, context: HttpContext, work: Callable[[], bytes]) -> None:
        def done(body: bytes) -> None:
            context.respond(200, JSON_HEADERS, (body,))

        self._run_in_thread(work, done, functools.partial(respond_failure, context))

    # --- on other threads -------------------------------------------------------------------------------------------

    def _ready_models(self) -> list[str]:
        return sorted({name_of(row.name) for row in self._engine.views.survey_repository(ready_only=True)})[
            :MAX_MODELS
        ]

    def _encode(self, models: Callable[[], Sequence[str]]) -> bytes:
        # Imported here: most servers never need it.
        from naiad.protocol.json.management.openapi import DocumentedEndpoint, DocumentedModel, encode_openapi

        documented = []
        for name in models():
            try:
                metadata = self._engine.views.model_metadata(name)
                documented.append(DocumentedModel(metadata, self._engine.inference.is_decoupled(name)))
            except InferError as error:
                _log.debug("the API page has no '%s': %s", excerpt(name), error.message)  # unloaded meanwhile
        endpoints = [
            DocumentedEndpoint(
                form.method, form.path.variants, form.group or operation.group, form.summary or operation.summary
            )
            for operation in self._operations
            for form in operation.rest
        ]
        return encode_openapi(self._engine.views.server_metadata(), endpoints, documented)


def _read_page() -> tuple[Headers, bytes]:
    """Return the page with its header fields, which allow its own script and style and no other."""
    page = _PAGE.read_bytes()
    digests = {}
    for element in ("script", "style"):
        found = re.search(rf"<{element}>(.*?)</{element}>".encode(), page, re.DOTALL)
        assert found is not None, element
        digests[element] = b64encode(hashlib.sha256(found[1]).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digests['script']}'; style-src 'sha256-{digests['style']}'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = (
        (b"Content-Type", b"text/html; charset=utf-8"),
        (b"Content-Security-Policy", policy.encode()),
        (b"X-Content-Type-Options", b"nosniff"),
        (b"Referrer-Policy", b"no-referrer"),
    )
    return headers, page
