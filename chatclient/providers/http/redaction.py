"""Removes the secrets of a request from the errors it raises."""

import base64
import binascii
from collections.abc import Iterator
from contextlib import suppress
from os.path import commonprefix
from typing import Any
from urllib.parse import parse_qsl

from chatclient._internal.exceptions import chain_of
from chatclient.errors import ProviderError

# Every other header may contain a key; gateways define their own.
_PUBLIC = frozenset(
    {
        *("accept", "accept-encoding", "anthropic-beta", "anthropic-version", "connection"),
        *("content-length", "content-type", "host", "http-referer", "idempotency-key"),
        *("openai-beta", "openai-organization", "openai-project", "transfer-encoding"),
        *("user-agent", "x-amz-date", "x-title"),
    }
)
_MIN_LENGTH = 8  # characters; shorter values would match ordinary text


def redact_from(error: ProviderError, request: Any) -> None:
    """Mask the secrets of *request* in *error* and its causes.

    Some services quote a rejected key, and errors contain the response. Prefixes of a secret are
    masked too, because quoted responses may be truncated.
    """
    secrets = {secret for secret in _secrets_of(request) if len(secret) >= _MIN_LENGTH}
    longest_first = sorted(secrets, key=len, reverse=True)
    if error.__cause__ is None and error.__suppress_context__:
        error.__context__ = None  # may contain secrets in attributes that are not searched
    for linked in chain_of(error):
        linked.args = tuple(_mask_in(longest_first, value) for value in linked.args)
        for name, value in vars(linked).items():
            masked = None if value is request else _mask_in(longest_first, value)
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


def _mask_in(secrets: list[str], value: Any) -> Any:
    if isinstance(value, str):
        for secret in secrets:
            value = _mask(value, secret)
        return value
    if isinstance(value, dict):
        return {_mask_in(secrets, key): _mask_in(secrets, item) for key, item in value.items()}
    return [_mask_in(secrets, item) for item in value] if isinstance(value, list) else value


def _mask(text: str, secret: str) -> str:
    """Replace *secret*, and prefixes of it with at least `_MIN_LENGTH` characters, by `***`."""
    first, *others = text.split(secret[:_MIN_LENGTH])
    rest = secret[_MIN_LENGTH:]
    cut = (piece[len(commonprefix((piece, rest))) :] for piece in others)  # noqa: RUF071 - texts
    return "***".join((first, *cut))
