"""Anthropic's Messages API, and every server that speaks it."""

import os
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from chatclient.checks import check_number, check_word
from chatclient.json import dumps
from chatclient.messages import AssistantMessage, Message
from chatclient.model import ChatModel, OutputMode
from chatclient.options import ChatOptions, model_options
from chatclient.prompt import Prompt
from chatclient.providers.addresses import first_url
from chatclient.providers.anthropic_decoding import decode_response
from chatclient.providers.anthropic_encoding import (
    ANTHROPIC,
    COMPATIBLE,
    PROVIDER,
    Dialect,
    EncodedConversation,
    without_trailing_space,
)
from chatclient.providers.anthropic_options import (
    encode_options,
    marked,
    refuse_unenforceable,
    thinking_in,
)
from chatclient.providers.anthropic_schemas import is_enforceable
from chatclient.providers.anthropic_stream import StreamDecoder
from chatclient.providers.anthropic_turns import PAUSES, in_container, runs_tools
from chatclient.providers.cache_marks import without_excess
from chatclient.providers.continuations import continuations_in
from chatclient.providers.failures import json_of
from chatclient.providers.http import HttpAnswer, HttpClient, OverHttp, RetryPolicy, Timeouts
from chatclient.providers.keys import Headers, Key, headers_with, key_source, lower_case
from chatclient.providers.reading import EventReader, whole_answer
from chatclient.providers.wire_cache import EncodedOptions
from chatclient.response import ChatResponse
from chatclient.runtime import Runtime
from chatclient.values import EMPTY

_BASE_URL = "https://api.anthropic.com"
_PATH = "/v1/messages"
# Later versions know no temperature, top_p and top_k.
_HEADERS = {"anthropic-version": "2023-06-01"}
_BETA = "anthropic-beta"
# platform.claude.com/docs/en/build-with-claude/structured-outputs: from Opus 4.1 and the other 4.5.
_SCHEMALESS = re.compile(r"claude-(?:[23]|instant|(?:opus|sonnet)-4-(?:0|2025))")
# platform.claude.com/docs/en/models/opus-5-5/whats-new-opus-5-5, and those of the models beside it.
_UNFORCED = re.compile(r"claude-(?:(?:opus|sonnet)-5[-.]5|(?:fable|mythos)-5[-.][12]\b)")

CachedUpTo = Literal["tools", "system", "conversation"]
"""Up to where a prompt is cached."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AnthropicChatOptions(ChatOptions):
    """Options of Anthropic's Messages API beside the common ones.

    The API wants `max_tokens`; where none is set it is 16,384, and a thinking budget on top. It
    has no seed and no penalties: those options are not sent.

    Attributes:
        thinking: A budget in tokens, a mode such as `adaptive` or `disabled`, or the whole of the
            API's field.
        effort: How hard the model works, such as `low` or `max`.
        service_tier: Which of the provider's tiers serves the request.
        user_id: Who the end user is, for the provider's abuse detection.
        cache: Up to where the prompt is cached: the tools, also the system text, or the whole
            conversation.
        cache_ttl: How long the cache is kept.
        server_tools: Tools that the provider runs itself, in the API's form.
        max_continuations: How often at most a turn that the provider pauses while it runs those is
            sent back for the model to go on; 0 for not at all, by default 8.
        betas: Names for the `anthropic-beta` header.

    Raises:
        UsageError: *cache* is not a known value, *max_continuations* not a number or negative, or
            as with `ChatOptions`.
    """

    thinking: int | str | Mapping[str, Any] | None = None
    effort: str | None = None
    service_tier: str | None = None
    user_id: str | None = None
    cache: CachedUpTo | None = None
    cache_ttl: Literal["5m", "1h"] | None = None
    server_tools: Sequence[Mapping[str, Any]] | None = None
    max_continuations: int | None = None
    betas: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        ChatOptions.__post_init__(self)  # slots: there is no `super()` without arguments
        check_word("cache", self.cache, None, CachedUpTo)
        if self.max_continuations is not None:
            check_number("max_continuations", self.max_continuations)


class _Sent(NamedTuple):
    """A conversation as it was sent last."""

    messages: tuple[Message, ...]
    dialect: Dialect
    conversation: EncodedConversation


class AnthropicChatModel(OverHttp, ChatModel):
    """A model behind Anthropic's Messages API, or any server that speaks it.

    Args:
        model: Which model.
        api_key: The key, or a function that returns the current one; default: the environment's
            `ANTHROPIC_API_KEY`.
        base_url: Where the API is, without its version; default: the environment's
            `ANTHROPIC_BASE_URL`, else Anthropic's own.
        options: Options for every request.
        max_retries: How often a request that failed for a passing reason is repeated, or a
            `RetryPolicy`.
        timeout: Seconds to wait for an answer, or `Timeouts`.
        headers: More headers for every request; `anthropic-version` is among those that can be
            replaced.
        http_client: An httpx or httpx2 client to send requests with, which the caller closes; or
            `Connections`, for a proxy or HTTP/2.

    Raises:
        UsageError: There is no key, *base_url* is not an HTTP URL, or *model* is blank.
    """

    def __init__(
        self,
        model: str = "claude-haiku-4-5",
        *,
        api_key: Key = None,
        base_url: str | None = None,
        options: ChatOptions | None = None,
        max_retries: int | RetryPolicy = 2,
        timeout: float | Timeouts | None = 600.0,
        headers: Mapping[str, str] | None = None,
        http_client: Any = None,
    ) -> None:
        base_url = first_url(base_url, os.environ.get("ANTHROPIC_BASE_URL"), _BASE_URL)
        base_url = base_url.rstrip("/").removesuffix("/v1")
        self._dialect = ANTHROPIC if base_url == _BASE_URL else COMPATIBLE
        self._options = model_options(AnthropicChatOptions, model, options)
        wanted_by = "Anthropic" if self._dialect is ANTHROPIC else ""
        key = key_source(api_key, "ANTHROPIC_API_KEY", wanted_by=wanted_by)
        more = lower_case(headers)
        self._http = HttpClient(
            PROVIDER,
            base_url,
            headers_with(key, {**_HEADERS, **more}, name="x-api-key", scheme=""),
            timeout,
            max_retries,
            http_client,
            idempotent=True,
        )
        # Beta features are named in a header, which may be among those of every request.
        self._betas = tuple(filter(None, [more.get(_BETA)]))
        self._heads: EncodedOptions[bytes] = EncodedOptions()
        self._sent = _Sent((), self._dialect, EncodedConversation())

    @property
    def options(self) -> ChatOptions:
        """The options that hold where a prompt sets none."""
        return self._options

    def output_mode(self, options: ChatOptions) -> OutputMode:
        """Return how the model is best held to a schema."""
        schema, model = options.output_schema, options.model or self.name
        if not _SCHEMALESS.search(model) and (schema is None or is_enforceable(schema)):
            return "schema"
        # A model that thinks cannot be made to call a tool, and some never can.
        thinks = thinking_in(options).get("type", "disabled") != "disabled"
        return "instructions" if thinks or _UNFORCED.search(model) else "tool"

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        """Return the model's response to *prompt*."""

        async def ask(prompt: Prompt) -> ChatResponse:
            body = self._body(prompt, streaming=False)
            headers = self._headers(prompt.options)
            return await self._http.post(runtime, _PATH, body, _decoded, headers)

        return await PAUSES.whole(ask, prompt, _continuations_in(prompt.options))

    def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Return the chunks of the model's response to *prompt*, as they come."""

        def ask(prompt: Prompt) -> AsyncGenerator[ChatResponse | str, None]:
            body = self._body(prompt, streaming=True)
            headers = self._headers(prompt.options)
            return self._http.stream(runtime, _PATH, body, _reader, headers)

        # Only where it may be of use, for it is one more generator for each chunk.
        most = _continuations_in(prompt.options)
        return PAUSES.streamed(ask, prompt, most) if most else ask(prompt)

    def _headers(self, options: ChatOptions) -> Headers:
        """Return the headers that a request has beside those of all requests."""
        betas = getattr(options, "betas", None)
        if not betas:
            return EMPTY
        named = (betas,) if isinstance(betas, str) else betas
        return {_BETA: ",".join((*self._betas, *named))}

    def _body(self, prompt: Prompt, *, streaming: bool) -> bytes:
        options = in_container(prompt)
        head = self._heads.get(options, self._head, streaming=streaming)
        conversation = self._conversation(prompt.messages, self._dialect_for(prompt.options))
        system = b""
        if conversation.system:
            system = b',"system":[%b]' % marked(conversation.system, prompt.options)
        head = head[:-1] + system
        return b'%b,"messages":[%b]}' % (head, without_excess(conversation.messages(), head))

    def _head(self, options: ChatOptions, *, streaming: bool) -> bytes:
        """Return all of a request but its messages and system text."""
        if self._dialect is ANTHROPIC:
            refuse_unenforceable(options.output_schema)
        return dumps(encode_options(options, streaming=streaming))

    def _dialect_for(self, options: ChatOptions) -> Dialect:
        # A model of Anthropic's own is as strict about thoughts at whatever gateway.
        is_claude = "claude" in (options.model or self.name).lower()
        return ANTHROPIC if is_claude else self._dialect

    def _conversation(self, messages: tuple[Message, ...], dialect: Dialect) -> EncodedConversation:
        match messages:
            case (*_, AssistantMessage() as last):  # from where the model is to go on
                ending = [without_trailing_space(last)]
                return self._encode_and_keep(messages[:-1], dialect).plus(ending, dialect)
            case _:
                return self._encode_and_keep(messages, dialect)

    def _encode_and_keep(
        self, messages: tuple[Message, ...], dialect: Dialect
    ) -> EncodedConversation:
        known, form, conversation = self._sent
        # The next round of a conversation begins with what was sent in the last one: the very
        # same messages, which the comparison sees by their identity.
        size = len(known)
        if form is not dialect or size > len(messages) or messages[:size] != known:
            size, conversation = 0, EncodedConversation()
        conversation = conversation.plus(messages[size:], dialect)
        self._sent = _Sent(messages, dialect, conversation)
        return conversation


def _continuations_in(options: ChatOptions) -> int:
    return continuations_in(options) if runs_tools(options) else 0


def _decoded(answer: HttpAnswer) -> ChatResponse:
    if answer.body.lstrip().startswith((b"event:", b"data:")):  # a gateway that always streams
        return whole_answer(_reader(answer.headers), answer.body)
    return decode_response(json_of(PROVIDER, answer.body), answer.headers)


def _reader(headers: Headers) -> EventReader:
    return EventReader(StreamDecoder(headers))
