"""What a tool returned, as the model is told it."""

import json
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from typing import Any, TypeAlias, TypeGuard

from pydantic_core import to_json

from chatclient.checks import misfit
from chatclient.errors import ToolDefinitionError, ToolResultError
from chatclient.messages import Media
from chatclient.threads import is_async
from chatclient.tool import ToolResult

ResultConverter: TypeAlias = Callable[[Any], ToolResult | str]
"""Makes what a tool returned into what the model is told."""

_DONE = ToolResult("Done")  # of a tool that is declared to return nothing
_NULL = ToolResult("null")


def check_converter(converter: object) -> None:
    """Make sure that a result converter can be called with what a tool returned.

    Otherwise the tool would run, and the model be told of the developer's mistake.

    Raises:
        ToolDefinitionError: It cannot, or is a coroutine function.
    """
    if not callable(converter) or is_async(converter) or misfit(converter, 1):
        msg = (
            "a result converter must be a plain function that takes what the tool returned and"
            f" returns a text or a ToolResult, not {converter!r}"
        )
        raise ToolDefinitionError(msg)


def called(call: Callable[[], Any]) -> Any:
    """Return what *call* returns; of a generator, all that it yields.

    So the body of a generator runs where and as long as any other tool does, and its errors are
    the tool's.
    """
    value = call()
    # What has no such method is told at once; abstract classes think about it.
    if hasattr(value, "__next__") and isinstance(value, Generator):
        return list(value)
    if hasattr(value, "__anext__") and isinstance(value, AsyncGenerator):
        return _all_of(value)
    return value


async def _all_of(items: AsyncGenerator[Any, None]) -> list[Any]:
    return [item async for item in items]


def to_tool_result(
    value: Any, *, returns_nothing: bool = False, origin: str = "a tool"
) -> ToolResult:
    """Return *value* as the model is told it.

    A `str` stays as it is, never quoted again, and so does a `ToolResult`. `Media`, or a list of
    texts and media, becomes text with media beside it. `bytes` are taken for text in UTF-8, as
    pydantic does for arguments; content that is not text belongs in a `Media`, which knows its
    type. Everything else that pydantic can write becomes compact JSON: models, dataclasses, enums,
    dates, UUIDs, decimals, sets, and whatever holds them. Infinite numbers become strings, since
    JSON has none. What was returned stays beside the text, for the application.

    Args:
        value: What the tool returned.
        returns_nothing: Whether it is declared `-> None`; None then is `Done` instead of `null`.
        origin: What returned it, for messages.

    Raises:
        ToolResultError: The value has no JSON form; the error names its type and says what to do.
            The tool has done its work, so it is not for the model to mend.
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
        case list() | tuple() if _has_media(value):
            media = tuple(item for item in value if isinstance(item, Media))
            texts = [_text(item, origin) for item in value if not isinstance(item, Media)]
            return ToolResult("\n".join(texts), media, value=value)
        case _:
            return ToolResult(_text(value, origin), value=value)


def _has_media(value: Iterable[Any]) -> TypeGuard[Iterable[Any]]:
    return any(isinstance(item, Media) for item in value)


def _text(value: Any, origin: str) -> str:
    if isinstance(value, str):
        return str.__str__(value)  # the text itself, also of an enum of texts
    try:
        if isinstance(value, (bytes, bytearray)):
            return value.decode()
        return _json(value)
    except (ValueError, TypeError) as error:
        msg = (
            f"{origin} returned a value of type {type(value).__qualname__}, which cannot be sent to"
            f" a model ({error}); return text, JSON values, pydantic models, dataclasses or Media,"
            " or give the tool a result_converter"
        )
        raise ToolResultError(msg) from error


def _json(value: Any) -> str:
    try:
        return to_json(value, inf_nan_mode="strings").decode()
    except ValueError:  # which pydantic's serialisation errors are
        # The standard library can write half a surrogate pair, such as in a file's name, and names
        # the type of what cannot be written at all.
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
