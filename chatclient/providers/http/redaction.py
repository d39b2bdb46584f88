"""Removes the secrets of a request from the errors it raises."""

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from os.path import commonprefix
from typing import Any
from urllib.parse import parse_qsl

from chatclient._internal.exceptions import chain_of
from chatclient._internal.text import printable, shortened
from chatclient.errors import ProviderError

# Every other header may contain a key; gateways define their own.
_PUBLIC = frozenset(
    {
        *("accept", "accept-encoding", "anthropic-beta", "anthropic-version", "connection"),
        *("content-length", "content-type", "host", "http-referer", "idempotency-key"),
        *("openai-beta", "openai-organization", "openai-project", "transfer-encoding"),
        *("user-agent", "x-amz-date", "x-goog-user-project", "x-title"),
    }
)
_MIN_LENGTH = 8  # characters; shorter values would match ordinary text


# Some providers quote the rejected key. (An ordinary word after "Bearer" has no digit.)
_KEY = re.compile(
    r"\b(?:(?:sk|gsk|xai|pplx|hf|r8)[-_]|Bearer (?=[-.=]*[a-zA-Z_]*[\d*])|AIza)[-\w.*=]{6,}"
)


def without_keys(text: str) -> str:
    """Return *text* with `***` for what looks like an API key."""
    return _KEY.sub("***", text)


def redact_from(error: ProviderError, request: Any) -> None:
    """Mask the secrets of *request* in *error* and its causes.

    Some services quote a rejected key, and errors contain the response. Prefixes of a secret are
    masked too, because quoted responses may be truncated.
    """
    secrets = {secret for secret in _secrets_of(request) if len(secret) >= _MIN_LENGTH}
    longest_first = sorted(secrets, key=len, reverse=True)
    if error.__cause__ is None and error.__suppress_context__:
        error.__context__ = None  # may contain secrets in attributes that are not searched
    _redact(error, lambda text: _masked(text, longest_first), request)


# Of Google (also what is sent for tokens), JWT, and keys of AWS, which are 40 characters long.
_TOKENS = re.compile(
    r"\beyJ[\w-]{5,}\.[\w-]+(\.[\w-]*)?|\b(ya29\.|1//|GOCSPX-)[\w.-]{6,}"
    r"|(?<![\w+/])(?=[A-Za-z+/]*\d)[A-Za-z0-9+/]{40}(?![\w+/])"
)
_MAX_SHOWN = 500  # characters of a message


def token_service_error(
    kind: type[ProviderError], what: str, error: Exception, provider: str
) -> ProviderError:
    """Return an error of *kind* for one of a token service, without tokens, also in its cause.

    Args:
        kind: The class of the error.
        what: What has failed.
        error: The error of the library that asks for tokens.
        provider: The provider's name.
    """
    text = _without_tokens(str(error.args[0] if error.args else error))  # a cut key is no match
    found = kind(f"{what}: {printable(shortened(text, _MAX_SHOWN))}", provider=provider)
    found.__cause__ = error
    _redact(found, _without_tokens)
    return found


def _without_tokens(text: str) -> str:
    return _TOKENS.sub("***", text)


def _redact(error: BaseException, mask: Callable[[str], str], removed: object = None) -> None:
    """Apply *mask* to all texts in *error* and its causes, and remove the object *removed*.

    Errors in their arguments and attributes are included.
    """
    pending = chain_of(error)
    done: set[int] = set()
    while pending:
        linked = pending.pop()
        if id(linked) in done:
            continue
        done.add(id(linked))
        for value in (*linked.args, *vars(linked).values()):
            pending += chain_of(value) if isinstance(value, BaseException) else ()
        linked.args = tuple(_mask_in(mask, value) for value in linked.args)
        for name, value in vars(linked).items():
            masked = None if value is removed else _mask_in(mask, value)
            if masked != value:
                setattr(linked, name, masked)


class Redacting:
    """A context whose provider errors do not contain the secrets of *request*.

    *request* is None if it is not built yet.
    """

    __slots__ = ("_request",)

    def __init__(self, request: Any) -> None:
        self._request = request

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Mask the secrets in *error*."""
        if self._request is not None and isinstance(error, ProviderError):
            redact_from(error, self._request)


def _secrets_of(request: Any) -> Iterator[str]:
    for name, value in request.headers.items():
        if name.lower() not in _PUBLIC:
            scheme, _, token = value.partition(" ")
            if scheme.startswith("AWS4-"):  # only the signature is secret
                yield token.rpartition("=")[2]
                continue
            yield from (value, token)
            if scheme == "Basic":
                with suppress(binascii.Error, UnicodeDecodeError):
                    yield from base64.b64decode(token).decode().split(":", 1)
    for name, value in parse_qsl(request.url.query.decode()):
        if "version" not in name:
            yield value


def _mask_in(mask: Callable[[str], str], value: Any) -> Any:
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        return {_mask_in(mask, key): _mask_in(mask, item) for key, item in value.items()}
    return [_mask_in(mask, item) for item in value] if isinstance(value, list) else value


def _masked(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        text = _mask(text, secret)
    return text


def _mask(text: str, secret: str) -> str:
    """Replace *secret*, and prefixes of it with at least `_MIN_LENGTH` characters, by `***`."""
    first, *others = text.split(secret[:_MIN_LENGTH])
    rest = secret[_MIN_LENGTH:]
    cut = (piece[len(commonprefix((piece, rest))) :] for piece in others)  # noqa: RUF071 - texts
    return "***".join((first, *cut))
