"""Declares how an API takes the options common to all providers, and encodes them; no I/O."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from chatclient._internal.frozen import EMPTY
from chatclient._internal.logging import get_logger
from chatclient.chat.options import ChatOptions
from chatclient.errors import UnsupportedOptionError

log = get_logger(__name__)

Encode = Callable[[Any, ChatOptions], Mapping[str, Any] | str]
"""Returns the fields for the value of an option, by path such as `options.seed`; or, as a text, the
reason why the API, or the model in the options, does not take the value."""

COMMON_OPTIONS = (
    *("temperature", "top_p", "top_k", "max_tokens", "stop", "seed"),
    *("presence_penalty", "frequency_penalty", "tool_choice", "parallel_tool_calls"),
    *("reasoning", "cache", "service_tier", "user_id"),
)
"""The options of which each API declares how it takes them."""


def field(path: str) -> Encode:
    """Return the encoder of an option that is sent unchanged in the field *path*."""

    def encode(value: Any, _options: ChatOptions) -> Mapping[str, Any]:
        return {path: value}

    return encode


def lacking(reason: str) -> Encode:
    """Return the encoder of an option that the API does not have."""

    def encode(_value: Any, _options: ChatOptions) -> str:
        return reason

    return encode


def automatic(_value: Any, _options: ChatOptions) -> Mapping[str, Any]:
    """Encode an option for which nothing has to be sent."""
    return EMPTY


@dataclass(frozen=True, slots=True, eq=False)
class CommonOptions:
    """How an API takes the common options.

    Attributes:
        provider: The provider's name, for errors and logs.
        encoders: The encoder of each option in `COMMON_OPTIONS`.
        own: Options of the provider that mean the same as `reasoning`, and as `user_id`.
    """

    provider: str
    encoders: Mapping[str, Encode]
    own: Mapping[str, tuple[str, ...]] = EMPTY

    def settle(self, options: ChatOptions) -> ChatOptions:
        """Return *options* without those that others for the same purpose override.

        Options of the provider override common ones, unless only the common one is no default.
        """
        for name, own in self.own.items():
            if getattr(options, name) is None:
                continue
            given = [each for each in own if getattr(options, each, None) is not None]
            if not given:
                continue
            wins = name not in options.defaults and options.defaults >= set(given)
            options = options.mutate(**dict.fromkeys(given if wins else [name]))
        return options

    def encode(self, options: ChatOptions) -> dict[str, Any]:
        """Return the request's fields for the common options that are set.

        Raises:
            UnsupportedOptionError: The model does not take one that is no default.
        """
        body: dict[str, Any] = {}
        for name in COMMON_OPTIONS:
            value = getattr(options, name)
            if value is None or value == ():
                continue
            fields = self.encoders[name](value, options)
            if isinstance(fields, str):
                self._refuse(name, fields, options)
                continue
            for path, each in fields.items():
                _put(body, path, each)
        return body

    def _refuse(self, name: str, reason: str, options: ChatOptions) -> None:
        model = options.model or ""
        if name in options.defaults:
            _log_dropped(self.provider, model, name, reason)
            return
        msg = (
            f"{self.provider}'s {model or 'model'} does not take the option {name}: {reason}."
            " Leave it out, or make it a default option of the client: those are dropped where a"
            " model does not take them"
        )
        raise UnsupportedOptionError(msg, option=name, provider=self.provider, model=model)


@lru_cache(maxsize=1024)  # one line for each model and option
def _log_dropped(provider: str, model: str, option: str, reason: str) -> None:
    log.warning("option dropped", provider=provider, model=model, option=option, reason=reason)


def _put(body: dict[str, Any], path: str, value: Any) -> None:
    *parents, name = path.split(".")
    for parent in parents:
        body = body.setdefault(parent, {})
    body[name] = value


# --- reasoning -------------------------------------------------------------------------------

_EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")


def is_off(reasoning: str | int | None) -> bool:
    """Return whether a value of the option `reasoning` turns reasoning off."""
    return reasoning in ("none", 0)


def nearest_effort(wanted: str, offered: tuple[str, ...]) -> str:
    """Return the least effort *offered* that is not less than *wanted*, or else the greatest."""
    ordered = [effort for effort in _EFFORTS if effort in offered]
    rank = _EFFORTS.index(wanted)
    return next((effort for effort in ordered if _EFFORTS.index(effort) >= rank), ordered[-1])


def encode_effort(value: str | int, path: str, offered: tuple[str, ...]) -> Mapping[str, str] | str:
    """Return the field *path* with an effort *offered* by a model, or why there is none."""
    if is_off(value):
        if "none" in offered:
            return {path: "none"}
        return "it always reasons" if offered else EMPTY
    if not offered:
        return "it does not reason"
    if isinstance(value, int):
        return "it takes an effort, such as 'low', and no number of tokens"
    return {path: nearest_effort(value, offered)}
