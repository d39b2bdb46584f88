"""Converts the return values of tools to results for the model."""

import json
import math
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sized
from typing import Any, TypeAlias

from pydantic_core import to_json, to_jsonable_python

from chatclient._internal.checks import signature_error
from chatclient.chat.messages import Media
from chatclient.chat.tool import ToolResult
from chatclient.errors import ToolDefinitionError, ToolResultError
from chatclient.runtime.threads import is_async

ResultConverter: TypeAlias = Callable[[Any], ToolResult | str]
"""Converts a return value to a result for the model."""

_DONE = ToolResult("Done")  # for a tool with the return type None
_NULL = ToolResult("null")


def check_converter(converter: object) -> None:
    """Check that a result converter can be called with a return value.

    Otherwise the tool would run and then fail, and the error would go to the model.

    Raises:
        ToolDefinitionError: It cannot, or is a coroutine function.
    """
    if not callable(converter) or is_async(converter) or signature_error(converter, 1):
        msg = (
            "a result converter must be a plain function that takes what the tool returned and"
            f" returns a text or a ToolResult, not {converter!r}"
        )
        raise ToolDefinitionError(msg)


def collector(value: object) -> Callable[[Any], Any] | None:
    """Return a function that collects the items of a generator, or None for any other *value*.

    A tool may be a generator function. Its body runs in that function, plain or asynchronous.
    """
    # Most values have no such method; the check with an abstract class takes longer.
    if hasattr(value, "__next__") and isinstance(value, Generator):
        return list
    if hasattr(value, "__anext__") and isinstance(value, AsyncGenerator):
        return _all_of
    return None


async def _all_of(items: AsyncGenerator[Any, None]) -> list[Any]:
    return [item async for item in items]


def to_tool_result(
    value: Any, *, returns_nothing: bool = False, origin: str = "a tool"
) -> ToolResult:
    """Return *value* as a result for the model.

    A `str` and a `ToolResult` do not change. `Media`, or a list of texts and media, becomes a text
    with media. `bytes` are decoded as UTF-8, as pydantic does for arguments; binary content must be
    a `Media`, which has a type. All other values that pydantic can serialise become compact JSON:
    models, dataclasses, enums, dates, UUIDs, decimals, sets, and containers of them; also mappings,
    sized iterables, and arrays and numbers with a method `tolist`, as numpy has them. Infinite
    numbers become strings, because JSON has none. The result keeps the value for the application.

    Args:
        value: The return value.
        returns_nothing: Whether the return type is None; None becomes `Done` instead of `null`.
        origin: The name of the tool, for messages.

    Raises:
        ToolResultError: The value has no JSON form; the error contains its type and a solution. The
            tool has finished, so the model cannot correct it.
    """
    if type(value) is str:
        return ToolResult(value, value=value)
    match value:
        case None:
            return _DONE if returns_nothing else _NULL
        case ToolResult():
            return value
        case Media():
            return ToolResult("", (value,), value=value)
        case list() | tuple() if any(isinstance(item, Media) for item in value):
            media = tuple(item for item in value if isinstance(item, Media))
            texts = [_text(item, origin) for item in value if not isinstance(item, Media)]
            return ToolResult("\n".join(texts), media, value=value)
        case _:
            return ToolResult(_text(value, origin), value=value)


def data_result(value: Any) -> ToolResult:
    """Return *value*, which a tool of another framework returned, as a result for the model.

    As there, a value without JSON form is described by `str`: the tool has run.
    """
    try:
        return to_tool_result(value)
    except ToolResultError:
        return ToolResult(str(value), value=value)


def _text(value: Any, origin: str) -> str:
    if isinstance(value, str):
        return str.__str__(value)  # also the plain text of a str enum
    try:
        return value.decode() if isinstance(value, (bytes, bytearray)) else _json(value)
    except (ValueError, TypeError) as error:
        msg = (
            f"{origin} returned a value of type {type(value).__qualname__}, which cannot be sent to"
            f" a model ({error}); return text, JSON values, pydantic models, dataclasses or Media,"
            " or give the tool a result_converter"
        )
        raise ToolResultError(msg) from error


def _json(value: Any) -> str:
    try:
        return to_json(value, inf_nan_mode="strings", fallback=_jsonable).decode()
    except ValueError:  # pydantic's serialisation errors are ValueErrors
        # Only the standard library encodes lone surrogates, such as in file names.
        jsonable = to_jsonable_python(value, fallback=_jsonable)
        return json.dumps(_with_text_for_infinity(jsonable), separators=(",", ":"))


def _jsonable(value: Any) -> Any:
    """Return a value that pydantic cannot serialise as a dict, a list or a plain number.

    These are arrays and scalars of numpy and similar libraries, mappings, and sized iterables, such
    as ranges, views of dicts and the results of database queries.

    Raises:
        TypeError: It is of another type.
    """
    if callable(tolist := getattr(value, "tolist", None)):
        return tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Iterable) and isinstance(value, Sized):
        return list(value)
    msg = f"Object of type {type(value).__name__} is not JSON serializable"
    raise TypeError(msg)


def _with_text_for_infinity(value: Any) -> Any:
    """Return *value* with texts for the numbers that JSON does not have."""
    match value:
        case dict():
            return {key: _with_text_for_infinity(item) for key, item in value.items()}
        case list():
            return [_with_text_for_infinity(item) for item in value]
        case float() if not math.isfinite(value):
            return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
        case _:
            return value
