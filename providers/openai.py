"""OpenAI's Chat Completions, and every server that speaks it."""

import os
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chatclient.checks import check_kind
from chatclient.json import dumps
from chatclient.model import ChatModel, OutputMode
from chatclient.options import ChatOptions, model_options
from chatclient.prompt import Prompt
from chatclient.providers.addresses import first_url
from chatclient.providers.cache_marks import may_be_excess, without_excess
from chatclient.providers.failures import json_of
from chatclient.providers.http import HttpAnswer, HttpClient, OverHttp, RetryPolicy, Timeouts
from chatclient.providers.keys import Headers, Key, KeySource, headers_with, key_source
from chatclient.providers.openai_decoding import decode_response
from chatclient.providers.openai_dialect import (
    COMPATIBLE,
    OPENAI,
    Dialect,
    SystemRole,
    with_system_role,
)
from chatclient.providers.openai_encoding import (
    encode_message,
    encode_options,
    sendable,
)
from chatclient.providers.openai_metadata import rate_limit
from chatclient.providers.openai_stream import StreamDecoder
from chatclient.providers.reading import EventReader
from chatclient.providers.wire_cache import EncodedOptions, WireCache
from chatclient.response import ChatResponse
from chatclient.runtime import Runtime

__all__ = [
    "BASE_URL",
    "COMPATIBLE",
    "OPENAI",
    "Dialect",
    "OpenAIChatModel",
    "OpenAIChatOptions",
    "StreamDecoder",
    "decode_response",
    "dialect_at",
    "encode_message",
    "encode_options",
    "is_openai",
    "openai_key",
    "rate_limit",
]

BASE_URL = "https://api.openai.com/v1"
_PATH = "/chat/completions"
_OPENAI = re.compile(r"https?://([^/?#]*@)?([\w-]+\.)?api\.openai\.com(:\d+)?(/|\?|$)")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OpenAIChatOptions(ChatOptions):
    """Options of OpenAI's Chat Completions beside the common ones.

    OpenAI's own have no `top_k`: it is not sent, except to servers that may have it.

    Attributes:
        n: How many answers to give.
        reasoning_effort: How hard a reasoning model thinks: `none` to `xhigh`.
        verbosity: How long the answer is to be: `low`, `medium` or `high`.
        service_tier: Which of the provider's tiers serves the request.
        user: Who the end user is; `safety_identifier` and `prompt_cache_key` succeed it.
        safety_identifier: Who the end user is, for the provider's abuse detection.
        logit_bias: Likelihood of single tokens, by token id.
        logprobs: Whether to report log probabilities, kept in `Generation.metadata`.
        top_logprobs: How many alternatives to report for each token.
        store: Whether the provider keeps the answer.
        request_metadata: The provider's own metadata of the request.
        modalities: What to answer with, such as `text` and `audio`.
        audio: How spoken answers sound.
        prediction: Text that much of the answer is expected to repeat.
        prompt_cache_key: Ties requests to one cache.
        prompt_cache_retention: How long the cache holds.
        web_search_options: Switches on the provider's own web search.
        response_format: The form of the answer, such as `{"type": "json_object"}`; an
            `output_schema` goes before it.
        strict_tools: Whether the provider enforces the schemas of tools that do not say so
            themselves, as far as these have the form it needs.
        system_role: Who speaks system messages: `system`, `developer`, or `user` for models that
            know neither (o1-mini).
    """

    n: int | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    service_tier: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    logit_bias: Mapping[str, float] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    store: bool | None = None
    request_metadata: Mapping[str, str] | None = None
    modalities: str | Sequence[str] | None = None
    audio: Mapping[str, Any] | None = None
    prediction: Mapping[str, Any] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    web_search_options: Mapping[str, Any] | None = None
    response_format: Mapping[str, Any] | None = None
    strict_tools: bool | None = None
    system_role: SystemRole | None = None


class OpenAIChatModel(OverHttp, ChatModel):
    """A model behind OpenAI's Chat Completions API, or any server that speaks it.

    Args:
        model: Which model.
        api_key: The key, or a function that returns the current one; default: the environment's
            `OPENAI_API_KEY`.
        base_url: Where the API is, with its version (and a query, where the server wants one in
            every URL); default: the environment's `OPENAI_BASE_URL`, else OpenAI's own.
        options: Options for every request.
        max_retries: How often a request that failed for a passing reason is repeated, or a
            `RetryPolicy`.
        timeout: Seconds to wait for an answer, or `Timeouts`.
        headers: More headers for every request.
        http_client: An httpx or httpx2 client to send requests with, which the caller closes; or
            `Connections`, for a proxy or HTTP/2.
        dialect: In what the server differs from OpenAI's; default: nothing for OpenAI's own URL,
            the older common ground for others.

    Raises:
        UsageError: There is no key, *base_url* is not an HTTP URL, or *model* is blank.
    """

    def __init__(
        self,
        model: str = "gpt-5-mini",
        *,
        api_key: Key = None,
        base_url: str | None = None,
        options: ChatOptions | None = None,
        max_retries: int | RetryPolicy = 2,
        timeout: float | Timeouts | None = 600.0,
        headers: Mapping[str, str] | None = None,
        http_client: Any = None,
        dialect: Dialect | None = None,
    ) -> None:
        base_url = first_url(base_url, os.environ.get("OPENAI_BASE_URL"), BASE_URL)
        if dialect is not None:
            check_kind("dialect", dialect, Dialect)
        self._dialect = dialect or dialect_at(base_url)
        self._options = model_options(OpenAIChatOptions, model, options)
        self._http = HttpClient(
            self._dialect.provider,
            base_url,
            headers_with(openai_key(api_key, base_url), headers),
            timeout,
            max_retries,
            http_client,
            idempotent=True,
        )
        self._heads: EncodedOptions[tuple[bytes, Dialect]] = EncodedOptions()
        self._sent = WireCache()

    @property
    def provider(self) -> str:
        """Whose server it is, as far as the dialect tells."""
        return self._dialect.provider

    @property
    def options(self) -> ChatOptions:
        """The options that hold where a prompt sets none."""
        return self._options

    def output_mode(self, options: ChatOptions) -> OutputMode:
        """Return how the model is best held to a schema."""
        enforced = self._dialect.output_schema
        if enforced == "always" or (enforced == "without_tools" and not options.tool_callbacks):
            return "schema"
        return "tool" if self._dialect.forces_calls else "instructions"

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        """Return the model's response to *prompt*."""
        body = self._body(prompt, streaming=False)
        return await self._http.post(runtime, _PATH, body, self._decoded)

    def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Return the chunks of the model's response to *prompt*, as they come."""
        body = self._body(prompt, streaming=True)
        return self._http.stream(runtime, _PATH, body, self._reader)

    def _reader(self, headers: Headers) -> EventReader:
        return EventReader(StreamDecoder(self._dialect, headers))

    def _decoded(self, answer: HttpAnswer) -> ChatResponse:
        data = json_of(self._dialect.provider, answer.body)
        return decode_response(data, self._dialect, answer.headers)

    def _body(self, prompt: Prompt, *, streaming: bool) -> bytes:
        head, dialect = self._heads.get(prompt.options, self._head, streaming=streaming)
        messages = self._sent.join(sendable(prompt.messages, dialect), dialect, encode_message)
        if dialect.takes_marks and may_be_excess(prompt.messages):
            messages = without_excess(messages)
        return b'%b,"messages":[%b]}' % (head[:-1], messages)

    def _head(self, options: ChatOptions, *, streaming: bool) -> tuple[bytes, Dialect]:
        """Return all of a request but its messages, and the dialect in which they are sent."""
        role: SystemRole | None = getattr(options, "system_role", None)
        dialect = self._dialect if role is None else with_system_role(self._dialect, role)
        return dumps(encode_options(options, dialect, streaming=streaming)), dialect


def is_openai(base_url: str) -> bool:
    """Return whether *base_url* is OpenAI's own, that of one of its regions among them."""
    return _OPENAI.match(base_url) is not None


def dialect_at(base_url: str) -> Dialect:
    """Return what the server at *base_url* speaks, as far as that tells."""
    return OPENAI if is_openai(base_url) else COMPATIBLE


def openai_key(api_key: Key, base_url: str) -> KeySource:
    """Return the key, or what gives it; servers other than OpenAI's may want none.

    Raises:
        UsageError: OpenAI does, and there is none.
    """
    wanted_by = "OpenAI" if is_openai(base_url) else ""
    return key_source(api_key, "OPENAI_API_KEY", wanted_by=wanted_by)
