"""Keeps what a request carries in secret out of the errors that its answer is told in."""

import base64
import binascii
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from os.path import commonprefix
from typing import Any
from urllib.parse import parse_qsl

from chatclient.errors import ProviderError

# Whatever else a request carries may be a key: gateways have headers of their own for theirs.
_PUBLIC = frozenset(
    {
        *("accept", "accept-encoding", "anthropic-beta", "anthropic-version", "connection"),
        *("content-length", "content-type", "host", "http-referer", "idempotency-key"),
        *("openai-beta", "openai-organization", "openai-project", "transfer-encoding"),
        *("user-agent", "x-title"),
    }
)
_SHORTEST = 8  # characters; a shorter secret hides nothing, and would be found in other words


def hide(error: ProviderError, request: Any) -> None:
    """Take out of *error*, and of what caused it, what *request* carries in secret.

    Some services quote what they refuse, and errors quote the answer or keep it. A beginning of a
    secret counts as well: it may be the beginning of an answer that is quoted.
    """
    secrets = {each for each in _secrets_of(request) if len(each) >= _SHORTEST}
    longest_first = sorted(secrets, key=len, reverse=True)
    if error.__cause__ is None and error.__suppress_context__:
        error.__context__ = None  # there is more in it than can be hidden
    for each in _chain_of(error):
        each.args = tuple(_without(longest_first, value) for value in each.args)
        for name, value in vars(each).items():
            masked = None if value is request else _without(longest_first, value)
            if masked != value:
                setattr(each, name, masked)


@contextmanager
def hiding(request: Any) -> Generator[None, None, None]:
    """Let no error out that quotes a key of *request*, if there is one yet."""
    try:
        yield
    except ProviderError as error:
        if request is not None:
            hide(error, request)
        raise


def _chain_of(error: BaseException) -> list[BaseException]:
    """Return *error* and all that led to it."""
    chain: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and each not in chain:
            chain.append(each)
            waiting += [each.__cause__, each.__context__]
    return chain


def _secrets_of(request: Any) -> Iterator[str]:
    for name, value in request.headers.items():
        if name.lower() not in _PUBLIC:
            scheme, _, token = value.partition(" ")
            yield from (value, token)
            if scheme == "Basic":
                with suppress(binascii.Error, UnicodeDecodeError):
                    yield from base64.b64decode(token).decode().split(":", 1)
    for name, value in parse_qsl(request.url.query.decode()):
        if "version" not in name:
            yield value


def _without(secrets: list[str], value: Any) -> Any:
    if isinstance(value, str):
        for secret in secrets:
            value = _masked(value, secret)
        return value
    if isinstance(value, dict):
        return {_without(secrets, key): _without(secrets, each) for key, each in value.items()}
    return [_without(secrets, each) for each in value] if isinstance(value, list) else value


def _masked(text: str, secret: str) -> str:
    first, *others = text.split(secret[:_SHORTEST])
    rest = secret[_SHORTEST:]
    # What each goes on with of the rest of the secret is cut off.
    cut = (piece[len(commonprefix((piece, rest))) :] for piece in others)  # noqa: RUF071 - texts
    return "***".join((first, *cut))
