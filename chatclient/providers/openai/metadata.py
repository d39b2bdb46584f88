"""Decodes usage, rate limits and ids of Chat Completions responses."""

from collections.abc import Iterable, Mapping
from typing import Any

from chatclient._internal.frozen import FrozenDict
from chatclient.chat.response import NO_USAGE, ChatResponseMetadata, RateLimit, Usage
from chatclient.providers.http.auth import Headers
from chatclient.providers.http.error_details import parse_duration, request_id
from chatclient.providers.wire.fields import int_field, other_fields, parse_count

# `obfuscation` and `p` are padding against traffic analysis.
_KNOWN = frozenset({"id", "model", "usage", "choices", "object", "obfuscation", "p"})


def metadata_of(data: Mapping[str, Any], headers: Headers) -> ChatResponseMetadata:
    """Return the metadata of a response, or of a chunk."""
    return ChatResponseMetadata(
        id=data.get("id") or "",
        model=data.get("model") or "",
        usage=usage_of(data),
        rate_limit=rate_limit(headers),
        request_id=request_id(headers, data),
        values=other_fields(data, _KNOWN),
    )


_CACHED = (
    "prompt_cache_hit_tokens",
    "cached_tokens",
    "num_cached_tokens",
    "cache_read_input_tokens",
)
_WRITTEN = ("cache_creation_input_tokens",)


def usage_of(data: Mapping[str, Any]) -> Usage:
    """Return the usage of a response, or of a chunk."""
    usage = data.get("usage")
    if not usage:
        groq = data.get("x_groq")
        usage = groq.get("usage") if isinstance(groq, Mapping) else None
    if not usage:
        return NO_USAGE
    prompt = usage.get("prompt_tokens_details") or usage.get("prompt_token_details") or {}
    output = usage.get("completion_tokens_details") or usage.get("completion_token_details") or {}
    reasoning = int_field(output.get("reasoning_tokens"))
    sent = int_field(usage.get("prompt_tokens")) or 0
    cached = int_field(prompt.get("cached_tokens"))
    written = int_field(prompt.get("cache_write_tokens"))
    return Usage(
        sent,
        _output_tokens(usage, sent, reasoning or 0),
        _first(usage, _CACHED) if cached is None else cached,
        _first(usage, _WRITTEN) if written is None else written,
        reasoning,
        FrozenDict(usage),
    )


def _first(usage: Mapping[str, Any], names: Iterable[str]) -> int | None:
    """Return the first field of *usage* in *names*."""
    for name in names:
        if (value := usage.get(name)) is not None:
            return int_field(value)
    return None


def _output_tokens(usage: Mapping[str, Any], sent: int, reasoning: int) -> int:
    """Return all generated tokens; xAI's `completion_tokens` do not include reasoning."""
    tokens = int_field(usage.get("completion_tokens")) or 0
    is_separate = sent + tokens + reasoning == int_field(usage.get("total_tokens"))
    return tokens + reasoning if is_separate else tokens


_NOT_LIMITED = RateLimit()


def rate_limit(headers: Headers) -> RateLimit | None:
    """Return the rate limit in the response headers, or None."""
    fields = {
        name.removeprefix("x-").removeprefix("ratelimit-"): value
        for name, value in headers.items()
        if "ratelimit-" in name
    }
    if not fields:
        return None
    # Without a unit, `reset-requests` is ignored: seconds at some services, else milliseconds.
    reset = fields.get("reset-requests")
    # Names of OpenAI, Azure and Groq; of Mistral; of services that limit only requests.
    limit = RateLimit(
        requests_limit=_count(fields, "limit-requests", "limit-req-minute", "limit"),
        requests_remaining=_count(
            fields, "remaining-requests", "remaining-req-minute", "remaining"
        ),
        requests_reset=_count(fields, "reset") if reset is None else parse_duration(reset),
        tokens_limit=_count(fields, "limit-tokens", "limit-tokens-minute"),
        tokens_remaining=_count(fields, "remaining-tokens", "remaining-tokens-minute"),
        tokens_reset=parse_duration(fields.get("reset-tokens", "")),
    )
    return None if limit == _NOT_LIMITED else limit


def _count(fields: Mapping[str, str], *names: str) -> int | None:
    return next((parse_count(fields[name]) for name in names if name in fields), None)
