"""Validates the JSON form of a pending turn before anything in it is used, and signs it."""

import hashlib
import hmac
from functools import cache
from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypeAliasType, TypedDict

from chatclient._internal.checks import check_type
from chatclient._internal.json import dumps, loads
from chatclient.errors import UsageError

_Count = Annotated[int, Field(ge=0)]
_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_STRICT = ConfigDict(strict=True, extra="forbid")
_OPEN = ConfigDict(strict=True, extra="allow")


@with_config(_STRICT)
class _Call(TypedDict):
    type: Literal["tool_call"]
    id: str
    name: str
    arguments: str
    metadata: NotRequired[dict[str, Any]]


@with_config(_STRICT)
class _Reasoning(TypedDict):
    type: Literal["reasoning"]
    text: NotRequired[str]
    signature: NotRequired[str | None]
    provider: NotRequired[str]
    data: NotRequired[dict[str, Any] | None]


@with_config(_STRICT)
class _Media(TypedDict):
    type: Literal["media"]
    mime_type: str
    url: NotRequired[str]
    base64: NotRequired[str]
    id: NotRequired[str | None]
    name: NotRequired[str | None]
    metadata: NotRequired[dict[str, Any]]


@with_config(_OPEN)
class _ProviderPart(TypedDict):
    type: Literal["provider"]
    provider: str
    data: dict[str, Any]


_Part = Annotated[_Call | _Reasoning | _Media | _ProviderPart, Field(discriminator="type")]


@with_config(_STRICT)
class _Response(TypedDict):
    id: str
    name: str
    data: str
    is_error: NotRequired[bool]
    media: NotRequired[list[_Media]]
    metadata: NotRequired[dict[str, Any]]


class _Described(TypedDict):
    metadata: NotRequired[dict[str, Any]]
    id: NotRequired[str | None]
    stored_at: NotRequired[str | None]


@with_config(_STRICT)
class _System(_Described):
    role: Literal["system"]
    content: str


@with_config(_STRICT)
class _Assistant(_Described):
    role: Literal["assistant"]
    content: str | list[str | _Part]


@with_config(_STRICT)
class _User(_Described):
    role: Literal["user"]
    content: str | list[str | _Part]


@with_config(_STRICT)
class _ToolResponses(_Described):
    role: Literal["tool"]
    responses: list[_Response]


_Message = Annotated[_System | _User | _Assistant | _ToolResponses, Field(discriminator="role")]


@with_config(_OPEN)
class _Usage(TypedDict):
    input_tokens: NotRequired[_Count]
    output_tokens: NotRequired[_Count]
    cache_read_tokens: NotRequired[_Count | None]
    cache_write_tokens: NotRequired[_Count | None]
    reasoning_tokens: NotRequired[_Count | None]
    native: NotRequired[dict[str, Any]]


@with_config(_STRICT)
class _Execution(TypedDict):
    call: _Count
    seconds: _Seconds
    attempt: _Count
    started: float | None
    response: NotRequired[_Response]


@with_config(_STRICT)
class _Turn(TypedDict):
    version: int
    messages: list[_Message]
    message: _Assistant
    responses: list[_Response]
    pending: Annotated[list[str], Field(min_length=1)]
    held: NotRequired[list[str]]
    calls: dict[str, _Count]
    rounds: _Count
    conversation_id: str | int | None
    agents: "dict[str, _AnyTurn]"
    failures: list[tuple[str, str, _Count]]
    repeats: list[tuple[str, str, str, _Count]]
    seconds: _Seconds
    notes: dict[str, Any]
    breach: NotRequired[str | None]
    usage: NotRequired[_Usage]
    executions: NotRequired[list[_Execution]]
    left_out: NotRequired[dict[str, str]]


_AnyTurn = TypeAliasType("_AnyTurn", _Turn)


@cache
def _adapter() -> TypeAdapter[_Turn]:
    return TypeAdapter(_Turn)


def load_turn_data(text: str, version: int) -> dict[str, Any]:
    """Return what *text* contains: the JSON of a pending turn in the format *version*.

    Raises:
        ValueError: It is not; the message names the place.
    """
    data: Any = loads(text)
    if isinstance(data, dict) and data.get("version", version) != version:
        msg = f"version {data['version']!r} is not known"
        raise ValueError(msg)
    try:
        turn = _adapter().validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "text"
        msg = f"{place}: {first['msg']}"
        raise ValueError(msg) from None
    _check_calls(turn)
    return data  # type: ignore[no-any-return]  # validated


def _check_calls(turn: _Turn) -> None:
    """Check that calls, responses and agents belong together."""
    content = turn["message"]["content"]
    parts = [] if isinstance(content, str) else content
    calls = {
        part["id"] for part in parts if not isinstance(part, str) and part["type"] == "tool_call"
    }
    pending, held = set(turn["pending"]), set(turn.get("held", ()))
    answered = {each["id"] for each in turn["responses"]}
    for name, ids in (("pending", pending), ("held", held), ("responses", answered)):
        if unknown := sorted(ids - calls):
            msg = f"{name}: the message has no call {unknown[0]!r}"
            raise ValueError(msg)
    if unknown := sorted(turn["agents"].keys() - pending):
        msg = f"agents: no call {unknown[0]!r} waits"
        raise ValueError(msg)
    several = len(pending) + len(held) + len(answered)
    if several != len(calls) or pending | held | answered != calls:
        msg = "pending: each call of the message has to wait or to have a response"
        raise ValueError(msg)
    for agent in turn["agents"].values():
        _check_calls(agent)


def sign(text: str, key: str | bytes) -> str:
    """Return the JSON *text* with a signature by *key*, as JSON."""
    return dumps({"turn": text, "signature": _signature(text, key)}).decode()


def verified(text: str, key: str | bytes | None) -> str:
    """Return the JSON of the turn in *text*, which is signed if there is a *key*.

    Raises:
        UsageError: The signature is missing or wrong, or there is no key for it, or an empty one.
        ValueError: *text* is not JSON.
    """
    data = loads(text)
    is_signed = isinstance(data, dict) and data.keys() == {"turn", "signature"}
    if key is None:
        if is_signed:
            msg = "the pending turn is signed; pass the signing_key= of to_json() to from_json()"
            raise UsageError(msg)
        return text
    turn: object = data["turn"] if is_signed else text
    given: object = data["signature"] if is_signed else None
    expected = _signature(turn if isinstance(turn, str) else "", key)
    if (
        not isinstance(turn, str)
        or not isinstance(given, str)
        or not hmac.compare_digest(given.encode(errors="replace"), expected.encode())
    ):
        msg = "the pending turn has no valid signature: it was changed, or signed with another key"
        raise UsageError(msg)
    return turn


def _signature(text: str, key: str | bytes) -> str:
    """Return the signature of *text*.

    Raises:
        UsageError: *key* is empty: anybody could sign with it.
        WrongTypeError: It is neither a string nor bytes.
    """
    check_type("signing_key", key, (str, bytes))
    secret = key.encode(errors="surrogatepass") if isinstance(key, str) else key
    if not secret.strip():
        msg = "signing_key is empty; give a long random secret, such as secrets.token_hex(32)"
        raise UsageError(msg)
    return hmac.new(secret, text.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()
