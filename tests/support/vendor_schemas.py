"""Checks requests against the service model, or the types, of the provider's own package."""

import base64
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import pytest

Json = dict[str, Any]
Problems = Callable[[Any], list[str]]


def closed(schema: Any) -> Any:
    """Return a JSON Schema in which no object has other fields than those that are named."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: closed(value) for key, value in schema.items()}
    # The types of answers, which may be sent back, allow new fields.
    others = schema.get("additionalProperties")
    if isinstance(schema.get("properties"), dict) and not isinstance(others, dict):
        result["additionalProperties"] = False
    return result


def problems_by_model(kind: Any) -> Problems:
    """Return a function that lists what contradicts *kind*, a pydantic model."""
    pydantic = pytest.importorskip("pydantic")
    adapter = pydantic.TypeAdapter(kind)

    def problems(body: Any) -> list[str]:
        try:
            adapter.validate_python(body)
        except pydantic.ValidationError as error:
            return [str(error)]
        return []

    return problems


def problems_by_types(kind: Any) -> Problems:
    """Return a function that lists what contradicts *kind*, a typed dictionary.

    With its JSON Schema, because pydantic checks iterables only when they are read.
    """
    jsonschema = pytest.importorskip("jsonschema")
    pydantic = pytest.importorskip("pydantic")
    adapter = pydantic.TypeAdapter(kind)
    validator = jsonschema.Draft202012Validator(closed(adapter.json_schema(mode="validation")))

    def problems(body: Any) -> list[str]:
        leaves = [leaf for error in validator.iter_errors(body) for leaf in leaves_of(error)]
        return [f"{leaf.json_path}: {leaf.message}"[:500] for leaf in deepest(leaves)]

    return problems


def leaves_of(error: Any) -> Iterator[Any]:
    """Yield the errors that led to *error*, in the alternatives of a union."""
    if not error.context:
        yield error
    for each in error.context:
        yield from leaves_of(each)


def deepest(leaves: list[Any]) -> list[Any]:
    """Return the errors furthest inside, except those of alternatives that are obviously others."""
    wrong = [leaf for leaf in leaves if leaf.validator != "const"] or leaves
    depth = max((len(leaf.absolute_path) for leaf in wrong), default=0)
    return [leaf for leaf in wrong if len(leaf.absolute_path) == depth][:5]


# Removed from the package with version 2, although models before Opus 4.7 still take them.
SAMPLING = ("temperature", "top_p", "top_k")


@cache
def anthropic_problems() -> Problems:
    module = pytest.importorskip("anthropic.types.beta.message_create_params")
    problems = problems_by_types(module.MessageCreateParamsNonStreaming)
    return lambda body: problems({k: v for k, v in body.items() if k not in SAMPLING})


@cache
def chat_problems() -> Problems:
    module = pytest.importorskip("openai.types.chat.completion_create_params")
    return problems_by_types(module.CompletionCreateParamsNonStreaming)


@cache
def responses_problems() -> Problems:
    module = pytest.importorskip("openai.types.responses.response_create_params")
    return problems_by_types(module.ResponseCreateParamsNonStreaming)


@cache
def ollama_problems() -> Problems:
    return problems_by_model(pytest.importorskip("ollama._types").ChatRequest)


@cache
def gemini_problems() -> Problems:
    """Check the fields of a request, of which the package has no type."""
    types: Any = pytest.importorskip("google.genai.types")
    fields: Json = {
        "contents": list[types.Content],
        "systemInstruction": types.Content,
        "tools": list[types.Tool],
        "toolConfig": types.ToolConfig,
        "safetySettings": list[types.SafetySetting],
        "generationConfig": types.GenerationConfig,
        "cachedContent": str,
        "labels": dict[str, str],
        "serviceTier": types.ServiceTier,
    }
    checks = {name: problems_by_model(kind) for name, kind in fields.items()}

    def problems(body: Json) -> list[str]:
        found = [f"unknown field {name}" for name in body.keys() - checks.keys()]
        for name, value in body.items():
            found += [f"{name}{each}" for each in checks.get(name, lambda _: [])(value)]
        return found

    return problems


@cache
def bedrock_problems() -> Problems:
    """Check with the validator of botocore, and the limits that it ignores."""
    session = pytest.importorskip("botocore.session").Session()
    validate = pytest.importorskip("botocore.validate")
    model = session.get_service_model("bedrock-runtime")
    shape = model.operation_model("Converse").input_shape

    def problems(body: Json) -> list[str]:
        given = {"modelId": "m", **decoded(body, shape)}
        report = validate.ParamValidator().validate(given, shape).generate_report()
        return [*filter(None, [report]), *beyond_limits(given, shape, "")]

    return problems


def decoded(value: Any, shape: Any) -> Any:
    """Return JSON with bytes in place of Base64, as botocore takes it."""
    match shape.type_name:
        case "blob" if isinstance(value, str):
            return base64.b64decode(value, validate=True)
        case "structure" if isinstance(value, Mapping) and not shape.is_document_type:
            members = shape.members
            return {k: decoded(v, members[k]) if k in members else v for k, v in value.items()}
        case "list" if isinstance(value, list):
            return [decoded(each, shape.member) for each in value]
    return value


def beyond_limits(value: Any, shape: Any, path: str) -> Iterator[str]:
    """Yield the values that are too long, or none of those that are allowed."""
    limits = shape.metadata
    if isinstance(value, str):
        pattern = limits.get("pattern")
        if (pattern and not re.fullmatch(pattern, value)) or (
            shape.enum and value not in shape.enum
        ):
            yield f"{path} is {value!r}"
    if isinstance(value, str | bytes | list) and len(value) > limits.get("max", len(value)):
        yield f"{path} has {len(value)} elements"
    match shape.type_name:
        case "structure" if isinstance(value, Mapping) and not shape.is_document_type:
            for key in value.keys() & shape.members.keys():
                yield from beyond_limits(value[key], shape.members[key], f"{path}.{key}")
        case "list" if isinstance(value, list):
            for at, each in enumerate(value):
                yield from beyond_limits(each, shape.member, f"{path}[{at}]")
