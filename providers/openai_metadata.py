"""What a Chat Completions answer says beside its content: usage, limits, ids."""

from collections.abc import Iterable, Mapping
from typing import Any

from chatclient.providers.error_bodies import request_id
from chatclient.providers.fields import beside, count_of, number_of
from chatclient.providers.keys import Headers
from chatclient.providers.retry_hints import seconds_of
from chatclient.response import NO_USAGE, ChatResponseMetadata, RateLimit, Usage
from chatclient.values import FrozenDict

# Padding against eavesdroppers who count bytes says nothing.
_KNOWN = frozenset({"id", "model", "usage", "choices", "object", "obfuscation", "p"})


def metadata_of(data: Mapping[str, Any], headers: Headers) -> ChatResponseMetadata:
    """Return the metadata of an answer, or of a chunk of one."""
    return ChatResponseMetadata(
        id=data.get("id") or "",
        model=data.get("model") or "",
        usage=usage_of(data),
        rate_limit=rate_limit(headers),
        request_id=request_id(headers, data),
        values=beside(data, _KNOWN),
    )


# --- usage ----------------------------------------------------------------------------------

_CACHED = (
    "prompt_cache_hit_tokens",
    "cached_tokens",
    "num_cached_tokens",
    "cache_read_input_tokens",
)
_WRITTEN = ("cache_creation_input_tokens",)


def usage_of(data: Mapping[str, Any]) -> Usage:
    """Return the usage that an answer reports, wherever it does."""
    usage = data.get("usage")
    if not usage:
        groq = data.get("x_groq")
        usage = groq.get("usage") if isinstance(groq, Mapping) else None
    if not usage:
        return NO_USAGE
    prompt = usage.get("prompt_tokens_details") or usage.get("prompt_token_details") or {}
    output = usage.get("completion_tokens_details") or usage.get("completion_token_details") or {}
    reasoning = number_of(output.get("reasoning_tokens"))
    sent = number_of(usage.get("prompt_tokens")) or 0
    cached = number_of(prompt.get("cached_tokens"))
    written = number_of(prompt.get("cache_write_tokens"))
    return Usage(
        sent,
        _output_tokens(usage, sent, reasoning or 0),
        _first(usage, _CACHED) if cached is None else cached,
        _first(usage, _WRITTEN) if written is None else written,
        reasoning,
        FrozenDict(usage),
    )


def _first(usage: Mapping[str, Any], names: Iterable[str]) -> int | None:
    """Return the first of these numbers that *usage* has."""
    for name in names:
        if (value := usage.get(name)) is not None:
            return number_of(value)
    return None


def _output_tokens(usage: Mapping[str, Any], sent: int, reasoning: int) -> int:
    """Return all generated tokens; xAI leaves those of reasoning out of the completion's."""
    tokens = number_of(usage.get("completion_tokens")) or 0
    apart = sent + tokens + reasoning == number_of(usage.get("total_tokens"))
    return tokens + reasoning if apart else tokens


# --- limits ---------------------------------------------------------------------------------

_NOT_LIMITED = RateLimit()


def rate_limit(headers: Headers) -> RateLimit | None:
    """Return what the answer's headers say of the limits in force, or None."""
    said = {
        name.removeprefix("x-").removeprefix("ratelimit-"): value
        for name, value in headers.items()
        if "ratelimit-" in name
    }
    if not said:
        return None
    # A bare number is left alone where some services mean seconds by it, others milliseconds.
    reset = said.get("reset-requests")
    # What the services call it: OpenAI, Azure and Groq; Mistral; those that count requests only.
    limit = RateLimit(
        requests_limit=_count(said, "limit-requests", "limit-req-minute", "limit"),
        requests_remaining=_count(said, "remaining-requests", "remaining-req-minute", "remaining"),
        requests_reset=_count(said, "reset") if reset is None else seconds_of(reset),
        tokens_limit=_count(said, "limit-tokens", "limit-tokens-minute"),
        tokens_remaining=_count(said, "remaining-tokens", "remaining-tokens-minute"),
        tokens_reset=seconds_of(said.get("reset-tokens", "")),
    )
    return None if limit == _NOT_LIMITED else limit


def _count(said: Mapping[str, str], *names: str) -> int | None:
    for name in names:
        if name in said:
            return count_of(said[name])
    return None
