"""OpenAI's Responses API, and every server that speaks it."""

import os
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from chatclient.errors import InvalidRequestError
from chatclient.json import dumps
from chatclient.logs import described, get_logger
from chatclient.messages import Message
from chatclient.model import ChatModel
from chatclient.options import ChatOptions, model_options
from chatclient.prompt import Prompt
from chatclient.providers.addresses import first_url
from chatclient.providers.failures import json_of
from chatclient.providers.http import HttpAnswer, HttpClient, OverHttp, RetryPolicy, Timeouts
from chatclient.providers.keys import Headers, Key, headers_with
from chatclient.providers.openai import BASE_URL, dialect_at, is_openai, openai_key
from chatclient.providers.openai_responses_decoding import decode_response
from chatclient.providers.openai_responses_encoding import (
    CONVERSATION,
    PROVIDER,
    Form,
    SystemRole,
    encode_message,
)
from chatclient.providers.openai_responses_options import (
    encode_options,
    form_for,
    without_reasoning,
)
from chatclient.providers.openai_responses_stream import StreamDecoder
from chatclient.providers.reading import EventReader
from chatclient.providers.wire_cache import EncodedOptions, WireCache
from chatclient.response import ChatResponse
from chatclient.runtime import Runtime

log = get_logger(__name__)

_PATH = "/responses"
_SEALED = b'"encrypted_content":"'
# The code is `invalid_encrypted_content`; services and gateways have sentences of their own.
_UNREADABLE = re.compile(r"encrypted[ _]content", re.IGNORECASE)
# developers.openai.com/api/reference/resources/responses/methods/create; other servers of this
# API have them.
_LACKED_BY_OPENAI = frozenset({"top_k", "stop", "seed", "presence_penalty", "frequency_penalty"})


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OpenAIResponsesChatOptions(ChatOptions):
    """Options of OpenAI's Responses API beside the common ones.

    OpenAI's own has no stop texts, seed, penalties and `top_k`: those options are not sent.

    Attributes:
        reasoning_effort: How hard a reasoning model thinks.
        reasoning_summary: Whether, and how, it sums up its thoughts: `auto`, `concise`, `detailed`.
        verbosity: How long the answer is to be.
        service_tier: Which of the provider's tiers serves the request.
        instructions: What goes before the conversation, and is not kept with it.
        store: Whether the provider keeps the answer; by default it does not, except in background.
        include: What more the answer is to contain. Unless the answer is stored, or this is empty,
            reasoning models are asked for their encrypted reasoning, which goes back to them.
        previous_response_id: The stored answer that the prompt's messages follow.
        conversation: The provider's conversation that the prompt's messages follow. Those that it
            holds, up to the last answer in it, are not sent again.
        background: Whether to answer at once, before the answer is there.
        truncation: What to do with a conversation that is too long: `auto` or `disabled`.
        request_metadata: The provider's own metadata of the request.
        prompt_cache_key: Ties requests to one cache.
        prompt_cache_retention: How long the cache keeps the prompt.
        user: Who the end user is; `safety_identifier` and `prompt_cache_key` succeed it.
        safety_identifier: Who the end user is, for the provider's abuse detection.
        top_logprobs: How many alternatives to report for each token.
        max_tool_calls: At most so many calls of the provider's own tools.
        response_format: The form of the answer, such as `{"type": "json_object"}`; an
            `output_schema` goes before it.
        strict_tools: Whether the provider enforces the schemas of tools that do not say so
            themselves, as far as these have the form it needs; by default it does not.
        system_role: Who speaks system messages: `system` or `developer`.
        server_tools: Tools on the provider's side, such as `{"type": "web_search"}`, and tools of
            `{"type": "custom", "name": ...}`: the model calls these with free text, which goes to
            the tool callback of that name.
    """

    reasoning_effort: str | None = None
    reasoning_summary: str | None = None
    verbosity: str | None = None
    service_tier: str | None = None
    instructions: str | None = None
    store: bool | None = None
    include: str | Sequence[str] | None = None
    previous_response_id: str | None = None
    conversation: str | None = None
    background: bool | None = None
    truncation: str | None = None
    request_metadata: Mapping[str, str] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    top_logprobs: int | None = None
    max_tool_calls: int | None = None
    response_format: Mapping[str, Any] | None = None
    strict_tools: bool | None = None
    system_role: SystemRole | None = None
    server_tools: Sequence[Mapping[str, Any]] | None = None


class OpenAIResponsesChatModel(OverHttp, ChatModel):
    """A model behind OpenAI's Responses API, or any server that speaks it.

    Nothing is kept at the provider unless `store` says so: each request carries the conversation,
    with the model's reasoning in encrypted form. A server that cannot read it, because another one
    has encrypted it, is asked again without. What the API knows beyond the common messages (an
    approval of an MCP call, say) can be sent as `UserMessage([ProviderPart("openai", item)])`.

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
    ) -> None:
        base_url = first_url(base_url, os.environ.get("OPENAI_BASE_URL"), BASE_URL)
        self._options = model_options(OpenAIResponsesChatOptions, model, options)
        self._lacks = _LACKED_BY_OPENAI if is_openai(base_url) else frozenset[str]()
        self._http = HttpClient(
            dialect_at(base_url).provider,
            base_url,
            headers_with(openai_key(api_key, base_url), headers),
            timeout,
            max_retries,
            http_client,
            idempotent=True,
        )
        self._origin = PROVIDER if is_openai(base_url) else urlsplit(self._http.base_url).netloc
        self._heads: EncodedOptions[tuple[bytes, Form]] = EncodedOptions()
        self._sent = WireCache()

    @property
    def options(self) -> ChatOptions:
        """The options that hold where a prompt sets none."""
        return self._options

    @property
    def provider(self) -> str:
        """Whose server it is: OpenAI's own, or one that is compatible."""
        return self._http.provider

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        """Return the model's response to *prompt*."""
        body = self._body(prompt, streaming=False)
        try:
            return await self._http.post(runtime, _PATH, body, self._decoded)
        except InvalidRequestError as error:
            self._check_unreadable(error, body)
        body = self._body(prompt, streaming=False, reasoning=False)
        return await self._http.post(runtime, _PATH, body, self._decoded)

    def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Return the chunks of the model's response to *prompt*, as they come."""
        body = self._body(prompt, streaming=True)
        if _SEALED in body:
            return self._stream_sealed(prompt, body, runtime)
        return self._http.stream(runtime, _PATH, body, self._reader)

    async def _stream_sealed(
        self, prompt: Prompt, body: bytes, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Yield the response to *prompt*, whose reasoning the server may not be able to read."""
        try:
            async with aclosing(self._http.stream(runtime, _PATH, body, self._reader)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except InvalidRequestError as error:
            self._check_unreadable(error, body)
        else:
            return
        body = self._body(prompt, streaming=True, reasoning=False)
        async with aclosing(self._http.stream(runtime, _PATH, body, self._reader)) as chunks:
            async for chunk in chunks:
                yield chunk

    def _check_unreadable(self, error: InvalidRequestError, body: bytes) -> None:
        """Raise *error* again, unless it is about reasoning that another server has encrypted."""
        if _SEALED not in body or _UNREADABLE.search(str(error)) is None:
            raise error
        log.info("reasoning left out", provider=self.provider, error=described(error))

    def _reader(self, headers: Headers) -> EventReader:
        return EventReader(StreamDecoder(self._http.provider, headers, self._origin))

    def _decoded(self, answer: HttpAnswer) -> ChatResponse:
        provider = self._http.provider
        data = json_of(provider, answer.body)
        return decode_response(data, provider, answer.headers, self._origin)

    def _body(self, prompt: Prompt, *, streaming: bool, reasoning: bool = True) -> bytes:
        head, form = self._heads.get(prompt.options, self._head, streaming=streaming)
        form = form if reasoning else without_reasoning(form)
        items = self._sent.join(_to_send(prompt), form, encode_message)
        return b'%b,"input":[%b]}' % (head[:-1], items)

    def _head(self, options: ChatOptions, *, streaming: bool) -> tuple[bytes, Form]:
        """Return all of a request but its input, and the form in which that is sent."""
        body = encode_options(options, streaming=streaming, lacks=self._lacks)
        return dumps(body), form_for(options, self._origin)


def _to_send(prompt: Prompt) -> tuple[Message, ...]:
    """Return the messages that the provider's conversation, if there is one, does not hold yet."""
    conversation = getattr(prompt.options, "conversation", None)
    messages = prompt.messages
    if conversation is not None:
        for at in reversed(range(len(messages))):
            if messages[at].metadata.get(CONVERSATION) == conversation:
                return messages[at + 1 :]
    return messages
