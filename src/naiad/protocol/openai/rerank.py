"""Bodies of `/v1/rerank` ⇄ pairs of texts, or texts whose vectors are compared, and scores.

The form is that of Cohere and Jina; OpenAI has no such endpoint.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from naiad.config.openai_mapping import OpenAiMapping
from naiad.core.errors import excerpt, internal
from naiad.protocol.openai.completion_request import MAX_PROMPT_CHARACTERS
from naiad.protocol.openai.embedding import MAX_TEXTS, Vectors
from naiad.protocol.openai.members import BodyMembers
from naiad.protocol.openai.openai_error import OpenAiError

_MEMBERS = ("model", "query", "documents", "top_n", "return_documents", "user")


@dataclass(frozen=True, slots=True)
class RerankRequest:
    """What a client asks to be compared."""

    query: str
    documents: Sequence[str]
    top_n: int
    """0: all documents."""
    returns_documents: bool
    compares_vectors: bool
    """Whether the model makes vectors of single texts; otherwise it takes the query with each document."""

    @property
    def texts(self) -> Sequence[str]:
        """The texts of the model's first input."""
        return [self.query, *self.documents] if self.compares_vectors else [self.query] * len(self.documents)

    def columns(self, mapping: OpenAiMapping) -> Mapping[str, Sequence[str]]:
        """Return the texts of each input."""
        pairs = {} if self.compares_vectors else {mapping.documents: self.documents}
        return {mapping.input: self.texts, **pairs}

    def encode(self, parts: Sequence[Vectors], model: str, prompt_tokens: int | None) -> bytes:
        """Return the body of a response, the most relevant document first. Raises InferError."""
        rows = np.concatenate(parts)
        if not self.compares_vectors and rows.shape[1] != 1:
            raise internal(f"model '{excerpt(model)}' has {rows.shape[1]} scores for a pair of texts; expected one")
        scores = _cosines(rows) if self.compares_vectors else rows[:, 0]
        order = np.argsort(-scores, kind="stable")[: self.top_n or None]
        results = [self._result(int(index), float(scores[index])) for index in order]
        usage = None if prompt_tokens is None else {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
        body = {"id": f"rerank-{uuid.uuid4().hex}", "object": "list", "model": model, "results": results}
        return orjson.dumps({**body, "usage": usage})

    def _result(self, index: int, score: float) -> Mapping[str, Any]:
        found: dict[str, Any] = {"index": index, "relevance_score": score}
        if self.returns_documents:
            found["document"] = {"text": self.documents[index]}
        return found


def read_rerank(body: BodyMembers, mapping: OpenAiMapping, model: str) -> RerankRequest:
    """Return the request of a body. Raises OpenAiError."""
    if not mapping.reranks:
        hint = ": its owner allows it with 'rerank=cosine'" if mapping.task == "embedding" else ""
        raise OpenAiError(f"model '{excerpt(model)}' does not compare documents with a query{hint}", param="model")
    body.check_names(_MEMBERS)
    query, documents = body.text("query"), _documents(body)
    copies = 1 if mapping.compares_vectors else len(documents)
    characters = copies * len(query) + sum(map(len, documents))
    if characters > MAX_PROMPT_CHARACTERS:
        raise OpenAiError(
            f"the query with each of {len(documents)} documents has {characters} characters, and a request at most "
            f"{MAX_PROMPT_CHARACTERS}. Send fewer documents, or a shorter query",
            param="documents",
            code="request_too_large",
        )
    top_n = body.whole("top_n", 1, MAX_TEXTS) or 0
    return RerankRequest(query, documents, top_n, body.flag("return_documents"), mapping.compares_vectors)


def _documents(body: BodyMembers) -> Sequence[str]:
    found = body.get("documents")
    expected = f'a list of 1 to {MAX_TEXTS} texts, or objects {{"text": "..."}}, none empty'
    if not isinstance(found, list) or not 0 < len(found) <= MAX_TEXTS:
        raise body.wrong("documents", expected)
    texts: list[str] = []
    for each in found:
        text = each.get("text") if isinstance(each, dict) else each
        if not isinstance(text, str) or not text:
            raise body.wrong("documents", expected)
        texts.append(text)
    return texts


def _cosines(vectors: Vectors) -> Vectors:
    """Return the cosine of the angle between the first vector and each other; 0 for a vector without a length."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    directions = vectors / np.where(lengths > 0, lengths, 1)
    cosines: Vectors = directions[1:] @ directions[0]
    return cosines
