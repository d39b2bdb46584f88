"""The body of a request, without sending it."""

import json
from collections.abc import Mapping
from typing import Any

from chatclient import ChatModel, Prompt
from chatclient.providers import GeminiChatModel


def body_of(model: ChatModel, prompt: Prompt) -> dict[str, Any]:
    """Return the JSON body that *model* sends for *prompt*."""
    streams_by_path = isinstance(model, GeminiChatModel)
    how: dict[str, Any] = {} if streams_by_path else {"streaming": False}
    encode: Any = model
    body: dict[str, Any] = json.loads(encode._body(prompt, **how), object_pairs_hook=_unique)
    return body


def _unique(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object, after a check that no field occurs twice."""
    found = dict(fields)
    assert len(found) == len(fields), f"doubled fields: {[name for name, _ in fields]}"
    return found


def fields_of(body: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return the values in *body* by path, such as `options.seed`."""
    fields: dict[str, Any] = {}
    for name, value in body.items():
        at = f"{path}.{name}" if path else name
        fields.update(fields_of(value, at) if isinstance(value, dict) else {at: value})
    return fields


def added_fields(model: ChatModel, prompt: Prompt, **options: Any) -> dict[str, Any]:
    """Return the fields, by path, that *options* add to the body for *prompt*, or change in it."""
    plain = Prompt.of(prompt.messages, model.options.merge(prompt.options))
    before = fields_of(body_of(model, plain))
    after = fields_of(body_of(model, plain.with_options(plain.options.mutate(**options))))
    return {path: value for path, value in after.items() if before.get(path) != value}
