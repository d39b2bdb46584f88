"""A loopback server with the rerank APIs of Cohere and Jina; it refuses undocumented requests."""

import re
from collections.abc import Mapping
from typing import Any

import jsonschema

from tests.support.loopback import LoopbackServer, as_json
from tests.support.servers import Reply

_TEXT = {"type": "string", "minLength": 1}
_COMMON = {
    "model": _TEXT,
    "query": _TEXT,
    "documents": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 1000},
    "top_n": {"type": "integer", "minimum": 1},
}
SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "/v2/rerank": {  # https://docs.cohere.com/reference/rerank
        "type": "object",
        "properties": {
            **_COMMON,
            "max_tokens_per_doc": {"type": "integer", "minimum": 1},
            "priority": {"type": "integer", "minimum": 0, "maximum": 999},
        },
        "required": ["model", "query", "documents"],
        "additionalProperties": False,
    },
    "/v1/rerank": {  # https://api.jina.ai/redoc
        "type": "object",
        "properties": {
            **_COMMON,
            "return_documents": {"type": "boolean"},
            "truncation": {"type": "boolean"},
        },
        "required": ["model", "query", "documents"],
        "additionalProperties": False,
    },
}


def relevance(query: str, text: str) -> float:
    """Return the share of the query's words that *text* contains."""
    words = set(re.findall(r"\w+", query.lower()))
    return round(len(words & set(re.findall(r"\w+", text.lower()))) / len(words), 6)


class RerankServer(LoopbackServer):
    """Ranks by common words; *first* are replied first, whatever the request.

    Attributes:
        requests: The bodies of the requests.
        headers: Their headers.
    """

    def __init__(self, *first: Reply) -> None:
        super().__init__(self._reply)
        self._first = list(first)
        self.paths: list[str] = []
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    def _reply(self, path: str, headers: dict[str, str], body: Any) -> Reply:
        self.paths.append(path)
        self.requests.append(body)
        self.headers.append(headers)
        if self._first:
            return self._first.pop(0)
        try:
            jsonschema.validate(body, SCHEMAS[path])
        except jsonschema.ValidationError as error:
            key = "message" if path == "/v2/rerank" else "detail"
            return as_json({key: error.message}, 400 if path == "/v2/rerank" else 422)
        return as_json(_cohere(body) if path == "/v2/rerank" else _jina(body))


def _results(body: dict[str, Any]) -> list[dict[str, Any]]:
    results = [
        {"index": index, "relevance_score": relevance(body["query"], text)}
        for index, text in enumerate(body["documents"])
    ]
    results.sort(key=lambda result: -result["relevance_score"])
    return results[: body.get("top_n")]


def _cohere(body: dict[str, Any]) -> dict[str, Any]:
    meta = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}
    return {"id": "07734bd2-2473-4f07-94e1-0d9f0e6843cf", "results": _results(body), "meta": meta}


def _jina(body: dict[str, Any]) -> dict[str, Any]:
    results = _results(body)
    if body.get("return_documents", True):
        for result in results:
            result["document"] = {"text": body["documents"][result["index"]]}
    return {"model": body["model"], "usage": {"total_tokens": 38}, "results": results}
