"""Replaces parameter names that a provider rejects."""

import hashlib
import re
from collections.abc import Collection, Mapping
from typing import Any

_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_.-]+")
_MAX_LENGTH = 64
_DIGEST = 8  # hexadecimal digits
# Keywords whose subschemas describe the same object.
_SAME_OBJECT = ("if", "then", "else", "not")


def accepted_names(names: Collection[str], accepted: re.Pattern[str]) -> dict[str, str]:
    """Return a new name for each of *names* that *accepted* does not match.

    The result is deterministic, so that all requests use the same names.
    """
    taken = {name for name in names if accepted.fullmatch(name)}
    result: dict[str, str] = {}
    for name in names:
        if name not in taken:
            result[name] = _accepted_name(name, accepted, taken.union(result.values()))
    return result


def _accepted_name(name: str, accepted: re.Pattern[str], taken: Collection[str]) -> str:
    plain = _NOT_IN_NAMES.sub("_", name).strip("_") or "property"
    if accepted.fullmatch(plain) is None and accepted.fullmatch(f"_{plain}"[:_MAX_LENGTH]):
        plain = f"_{plain}"
    if len(plain) <= _MAX_LENGTH and plain != "property" and plain not in taken:
        return plain
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:_DIGEST]
    return f"{plain[: _MAX_LENGTH - 1 - _DIGEST]}_{digest}"


def with_names(schema: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return *schema* with its properties renamed by *names*.

    The description of a renamed property begins with its original name.
    """
    result = dict(schema)
    if isinstance(properties := schema.get("properties"), Mapping):
        result["properties"] = {
            names.get(name, name): _described(name, each) if name in names else each
            for name, each in properties.items()
        }
    if isinstance(required := schema.get("required"), list | tuple):
        result["required"] = [names.get(name, name) for name in required]
    for key in ("dependentRequired", "dependentSchemas"):
        if isinstance(dependent := schema.get(key), Mapping):
            result[key] = {names.get(n, n): _dependent(v, names) for n, v in dependent.items()}
    for key in _SAME_OBJECT:
        if isinstance(part := schema.get(key), Mapping):
            result[key] = with_names(part, names)
    return result


def _dependent(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return with_names(value, names)
    return [names.get(name, name) for name in value] if isinstance(value, list | tuple) else value


def _described(name: str, schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return {"description": name} if schema is True else schema
    description = schema.get("description")
    return {**schema, "description": f"{name}: {description}" if description else name}
