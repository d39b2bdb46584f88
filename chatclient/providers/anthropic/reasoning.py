"""How Claude's generations take the option `reasoning`, and options that depend on it; no I/O."""

import re
from collections.abc import Mapping
from typing import Any

from chatclient._internal.frozen import EMPTY
from chatclient.chat.options import ChatOptions
from chatclient.providers.wire.common_options import Encode, encode_effort, is_off

# platform.claude.com/docs/en/build-with-claude/thinking: models that do not think, models with a
# budget in tokens, and models whose reasoning cannot be switched off. All others choose a budget
# from an effort.
_WITHOUT_THINKING = re.compile(r"claude-(?:3-(?!7)|2|instant)")
_WITH_BUDGET = re.compile(
    r"claude-(?:3-7|(?:opus|sonnet)-4-(?:[01]\b|[56]|20)|haiku-4|(?:opus|sonnet)-4(?:$|@))"
)
_ADAPTIVE = re.compile(r"claude-(?!3|2|instant|haiku-4|(?:opus|sonnet)-4(?:$|@|-(?:[015]\b|20)))")
_ALWAYS_THINKING = re.compile(r"claude-(?:fable|mythos)")
# platform.claude.com/docs/en/models/opus-5-5/whats-new-opus-5-5, and the pages of other models.
_WITHOUT_FORCED_CALLS = re.compile(
    r"claude-(?:(?:opus|sonnet)-5[-.]5|(?:fable|mythos)-5[-.][12]\b)"
)

_EFFORTS = ("low", "medium", "high", "max")
_LEAST_BUDGET = 1024
_BUDGETS = {"minimal": 1024, "low": 4096, "medium": 8192, "high": 16_384, "max": 32_768}


def encode_reasoning(value: Any, options: ChatOptions) -> Mapping[str, Any] | str:
    """Encode the option for the model in *options*."""
    model = options.model or ""
    if is_off(value):
        if _ALWAYS_THINKING.search(model):
            return "it always reasons"
        return EMPTY if _WITHOUT_THINKING.search(model) else {"thinking": {"type": "disabled"}}
    if _WITHOUT_THINKING.search(model):
        return "it does not reason"
    if _ADAPTIVE.search(model) and not (isinstance(value, int) and _WITH_BUDGET.search(model)):
        effort = encode_effort(value, "output_config.effort", _EFFORTS)
        return effort if isinstance(effort, str) else {**effort, "thinking": {"type": "adaptive"}}
    return _budget(value if isinstance(value, int) else _BUDGETS[value], options.max_tokens)


def _budget(tokens: int, max_tokens: int | None) -> Mapping[str, Any] | str:
    """Return the field for a budget, which must be less than the maximum tokens of the answer."""
    if max_tokens is not None:
        tokens = min(tokens, max_tokens - 1)
        if tokens < _LEAST_BUDGET:
            return f"it reasons with {_LEAST_BUDGET} tokens at least, fewer than max_tokens"
    return {"thinking": {"type": "enabled", "budget_tokens": max(tokens, _LEAST_BUDGET)}}


def thinking_in(options: ChatOptions) -> Mapping[str, Any]:
    """Return the API's field `thinking`."""
    thinking: int | str | Mapping[str, Any] | None = getattr(options, "thinking", None)
    match thinking:
        case None:
            if options.reasoning is None:
                return EMPTY
            fields = encode_reasoning(options.reasoning, options)
            return EMPTY if isinstance(fields, str) else fields.get("thinking", EMPTY)
        case int():
            return {"type": "enabled", "budget_tokens": thinking}
        case str():
            return {"type": thinking}
        case _:
            return thinking


def can_force_calls(options: ChatOptions) -> bool:
    """Return whether the model may be forced to call a tool."""
    # It may not while it thinks with a budget; some models never may.
    return (
        thinking_in(options).get("type") != "enabled"
        and _WITHOUT_FORCED_CALLS.search(options.model or "") is None
    )


# platform.claude.com/docs/en/models: since Opus 4.7, models choose by themselves.
_WITHOUT_SAMPLING = re.compile(
    r"claude-(?:(?:opus|sonnet)-4-[7-9]|(?:opus|sonnet|haiku|fable|mythos)-[5-9])"
)


def sampling(name: str, neutral: float | None = None) -> Encode:
    """Return the encoder of a sampling option, of which thinking models take only *neutral*."""

    def encode(value: Any, options: ChatOptions) -> Mapping[str, Any] | str:
        if value != neutral:
            if _WITHOUT_SAMPLING.search(options.model or ""):
                return "it has no sampling options"
            if thinking_in(options).get("type") == "enabled":
                return "models do not take it while they think"
        return {name: value}

    return encode
