"""Fields of requests, and those of answers, looked at before anything is made of them."""

import re
from collections.abc import Container, Mapping
from typing import Any

from chatclient.errors import UsageError
from chatclient.json import dumps, loads
from chatclient.options import ChatOptions
from chatclient.slips import repair_json
from chatclient.values import EMPTY, FrozenDict


def fields_of(
    options: ChatOptions, names: Mapping[str, str], lacks: Container[str] = ()
) -> dict[str, Any]:
    """Return those of *options* that are set, by what the API calls them.

    Args:
        options: Those of a request, perhaps another provider's, which lack some.
        names: What the API calls each option.
        lacks: Those options that the server does not have, and would refuse.
    """
    return {
        wire: value
        for name, wire in names.items()
        if name not in lacks and (value := getattr(options, name, None)) is not None and value != ()
    }


def overlaid(body: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request with the fields of *extra* on top.

    Objects join field by field, unless they are of different types, and the provider's own tools
    stand beside the application's.
    """
    result = {**body, **extra}
    for name in body.keys() & extra.keys():
        below, above = body[name], extra[name]
        if isinstance(below, Mapping) and isinstance(above, Mapping):
            both = {**below, **above}
            if below.get("type", both.get("type")) == both.get("type"):
                result[name] = both
        elif name == "tools":
            result[name] = [*below, *above]
    return result


def object_in(text: str | bytes) -> dict[str, Any] | None:
    """Return the JSON object that *text* spells, or None where it spells none."""
    try:
        value = loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def unsendable(message: object) -> UsageError:
    """Return the error of a message of the application's own kind, which no provider knows."""
    return UsageError(f"{type(message).__name__} is not a kind of message that can be sent")


def arguments_in(text: str) -> dict[str, Any]:
    """Return the arguments of an earlier call as an object, whatever the model had written.

    Services refuse anything else, with every later request of the conversation. What its tool could
    mend is sent mended; else the model sees what it wrote as the value of a field.
    """
    found = object_in(text) if text.strip() else {}
    if found is None:
        found = object_in(repair_json(text) or "")
    return {"malformed_arguments": text} if found is None else found


def written_arguments(text: str) -> str:
    """Return the arguments of an earlier call as JSON that spells an object; see `arguments_in`.

    Those that are fine stay as they were written.
    """
    text = text.strip() or "{}"
    return text if object_in(text) is not None else dumps(arguments_in(text)).decode()


_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST_NAME = 64


def called_name(name: str) -> str:
    """Return the *name* of an earlier call as services take it, whatever the model had written.

    Models make up names such as `functions.add`, too. With one that no tool can have, every later
    request of the conversation would be refused.
    """
    return _NOT_IN_NAMES.sub("_", name)[:_LONGEST_NAME] or "unknown"


def arguments_of(value: Any) -> str:
    """Return the arguments of a call as JSON: APIs that give an object, and those that give text.

    Servers that speak an API of others' give either; and for no arguments nothing at all.
    """
    return value if isinstance(value, str) and value else dumps(value or {}).decode()


MISSHAPEN = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What a codec meets where an answer is not of the form it has to be."""


def text_of(value: Any) -> str:
    """Return a field that has to be text, or may be left out.

    Raises:
        TypeError: It is something else.
    """
    if type(value) is str:
        return value
    if value:
        msg = f"{value!r:.80} is not a text"
        raise TypeError(msg)
    return ""


def number_of(value: Any) -> int | None:
    """Return a field that counts something, or None where it is left out.

    Raises:
        TypeError: It is something else.
        ValueError: It is a text that spells no number.
    """
    if value is None or type(value) is int:
        return value
    if isinstance(value, str):
        return int(value) if value else None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    msg = f"{value!r:.80} is not a number"
    raise TypeError(msg)


def beside(data: Mapping[str, Any], known: Container[str]) -> Mapping[str, Any]:
    """Return the entries of *data* that are neither *known* nor null."""
    rest = {key: value for key, value in data.items() if value is not None and key not in known}
    return FrozenDict(rest) if rest else EMPTY


_DIGITS = 18


def count_of(text: str) -> int | None:
    """Return the number that *text*, such as a header, spells; None where it spells none."""
    return int(text) if len(text) <= _DIGITS and text.isascii() and text.isdigit() else None
