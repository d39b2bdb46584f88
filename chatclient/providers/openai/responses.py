"""Chat models of OpenAI's Responses API and compatible servers."""

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack
from urllib.parse import urlsplit

from chatclient._internal.logging import described, get_logger
from chatclient.chat.batch_api import BatchApi, SendItem
from chatclient.chat.messages import Message
from chatclient.chat.model import ChatModel
from chatclient.chat.options import ChatOptions, model_options
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import ChatResponse
from chatclient.chat.server_tools import ServerTool
from chatclient.errors import InvalidRequestError
from chatclient.providers.http.auth import Headers, Key
from chatclient.providers.http.client import HttpAnswer
from chatclient.providers.http.errors import parse_json
from chatclient.providers.http.model import HttpModel, batched_model
from chatclient.providers.http.reader import EventReader, decode_body
from chatclient.providers.http.settings import HttpOptions
from chatclient.providers.openai.batch import OpenAIBatchApi
from chatclient.providers.openai.chat import cache_keys, connect, is_openai, openai_url
from chatclient.providers.openai.chat_options import can_withhold
from chatclient.providers.openai.responses_decoding import decode_response
from chatclient.providers.openai.responses_encoding import (
    CONVERSATION,
    PROVIDER,
    EncodingSettings,
    SystemRole,
    encode_message,
    with_callers,
)
from chatclient.providers.openai.responses_options import (
    COMPATIBLE_OPTIONS,
    OPENAI_OPTIONS,
    encode_options,
    encoding_settings,
    without_reasoning,
)
from chatclient.providers.openai.responses_stream import StreamDecoder
from chatclient.providers.openai.server_tools import SERVER_TOOLS
from chatclient.providers.wire.json_cache import EncodedOptions, WireCache
from chatclient.providers.wire.request_body import RequestHead
from chatclient.providers.wire.sendable_schemas import COMPATIBLE_RULES, OPENAI_RULES
from chatclient.providers.wire.sendable_tools import RenamedArguments
from chatclient.providers.wire.server_tools import has_encoder
from chatclient.runtime.runtime import Runtime

log = get_logger(__name__)

_PATH = "/responses"
_ENCRYPTED = b'"encrypted_content":"'
# The code is `invalid_encrypted_content`; other services have different messages.
_UNREADABLE_REASONING = re.compile(r"encrypted[ _]content", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OpenAIResponsesChatOptions(ChatOptions):
    """Additional options of OpenAI's Responses API.

    OpenAI supports no stop sequences, seed, penalties and `top_k`; they are sent only to compatible
    servers.

    Attributes:
        reasoning_effort: Effort of a reasoning model.
        reasoning_summary: Form of reasoning summaries: `auto`, `concise` or `detailed`.
        verbosity: Length of the answer.
        instructions: Instructions that are not stored with the conversation.
        store: Whether the provider stores the answer; default: only if *background* is set.
        include: Additional content of the answer. Encrypted reasoning is requested from reasoning
            models by default, unless the answer is stored or this is empty.
        previous_response_id: The stored answer that the prompt continues.
        conversation: The provider's conversation that the prompt continues. Messages up to the last
            answer in it are not sent again.
        background: Whether to return immediately and generate the answer in the background.
        truncation: Handling of conversations that are too long: `auto` or `disabled`.
        request_metadata: Metadata that the provider stores.
        prompt_cache_key: Routes requests with this key to the same cache. Default, for OpenAI
            itself: a hash of the conversation's id, keyed with the API key.
        prompt_cache_retention: Retention time of the prompt cache: `in_memory` or `24h`.
        user: The end user; replaced by `user_id` and `prompt_cache_key`.
        safety_identifier: The end user, for the provider's abuse detection; also sent for
            `user_id`.
        top_logprobs: Number of alternatives to report for each token.
        max_tool_calls: Maximum number of calls of server-side tools.
        response_format: Format of the answer, such as `{"type": "json_object"}`; ignored if there
            is an `output_schema`.
        strict_tools: Default of `strict` for tools whose schemas allow strict mode.
        system_role: Role of system messages: `system` or `developer`.
        server_tools: Server-side tools, such as `{"type": "web_search"}`, and custom tools,
            `{"type": "custom", "name": ...}`, whose calls pass text to the callback of that name.
    """

    reasoning_effort: str | None = None
    reasoning_summary: str | None = None
    verbosity: str | None = None
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


class OpenAIResponsesChatModel(HttpModel, ChatModel):
    """A model of OpenAI's Responses API, or of a compatible server.

    Unless `store` is set, the provider stores nothing: each request contains the conversation, with
    encrypted reasoning. If a server cannot decrypt it, the request is repeated without reasoning.
    Other input items, such as the approval of an MCP call, can be sent as
    `UserMessage([ProviderPart("openai", item)])`.

    Args:
        model: The model's name.
        api_key: The key, or a function that returns the current one; default: the environment's
            `OPENAI_API_KEY`.
        base_url: URL of the API with its version, and a query if the server needs one; default: the
            environment's `OPENAI_BASE_URL`, else OpenAI's.
        options: Default options.
        **http: `max_retries`, `timeout`, `headers`, `http_client`, `limits`; see `HttpOptions`.

    Raises:
        UsageError: The key is missing, *base_url* is not an HTTP URL, or *model* is blank.
    """

    def __init__(
        self,
        model: str = "gpt-5-mini",
        *,
        api_key: Key = None,
        base_url: str | None = None,
        options: ChatOptions | None = None,
        **http: Unpack[HttpOptions],
    ) -> None:
        base_url = openai_url(base_url)
        self._options = model_options(OpenAIResponsesChatOptions, model, options)
        self._common = OPENAI_OPTIONS if is_openai(base_url) else COMPATIBLE_OPTIONS
        self._http = connect(base_url, api_key, http, idempotent=True)
        self._is_openai = is_openai(base_url)
        self._cache_keys = cache_keys(base_url, api_key)
        self._origin = PROVIDER if is_openai(base_url) else urlsplit(self._http.base_url).netloc
        self._head_cache: EncodedOptions[tuple[RequestHead, EncodingSettings]] = EncodedOptions()
        self._message_cache = WireCache()
        self._rules = OPENAI_RULES if is_openai(base_url) else COMPATIBLE_RULES
        self._renamed = RenamedArguments(self._rules)

    @property
    def options(self) -> ChatOptions:
        """The default options."""
        return self._options

    @property
    def provider(self) -> str:
        """The provider's name: `openai`, or `openai-compatible`."""
        return self._http.provider

    def can_withhold_tools(self, options: ChatOptions) -> bool:
        """Return whether OpenAI can restrict calls to some of the tools that it is sent."""
        return self._is_openai and can_withhold(options)

    def has_server_tool(self, tool: ServerTool, options: ChatOptions) -> bool:
        """Return whether the API has *tool*."""
        return has_encoder(tool, options, SERVER_TOOLS)

    def batched(self, send: SendItem) -> tuple[ChatModel, BatchApi]:
        """Return OpenAI's batch API, and a copy of this model whose requests go to *send*."""
        return batched_model(self, OpenAIBatchApi(self._http), send)

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        """Return the model's response to *prompt*."""
        body = self._body(prompt, streaming=False)
        try:
            answer = await self._http.post(runtime, _PATH, body, self._decode)
        except InvalidRequestError as error:
            self._check_unreadable(error, body)
            body = self._body(prompt, streaming=False, reasoning=False)
            answer = await self._http.post(runtime, _PATH, body, self._decode)
        return self._renamed.received(answer, prompt.options)

    def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Return the chunks of the model's response to *prompt*."""
        body = self._body(prompt, streaming=True)
        if _ENCRYPTED in body:
            chunks = self._stream_encrypted(prompt, body, runtime)
        else:
            chunks = self._http.stream(runtime, _PATH, body, self._reader)
        return self._renamed.received_stream(chunks, prompt.options)

    async def _stream_encrypted(
        self, prompt: Prompt, body: bytes, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Yield the response; if the server cannot decrypt the reasoning, retry without it."""
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
        """Raise *error* unless it is about encrypted reasoning in *body*."""
        if _ENCRYPTED not in body or _UNREADABLE_REASONING.search(str(error)) is None:
            raise error
        log.info("retry without reasoning", provider=self.provider, error=described(error))

    def _reader(self, headers: Headers) -> EventReader:
        decoder = StreamDecoder(self._http.provider, headers, self._origin)
        return EventReader(decoder, partial(self._decode_json, headers))

    def _decode(self, answer: HttpAnswer) -> ChatResponse:
        headers = answer.headers
        return decode_body(
            answer.body, partial(self._decode_json, headers), partial(self._reader, headers)
        )

    def _decode_json(self, headers: Headers, body: bytes) -> ChatResponse:
        provider = self._http.provider
        return decode_response(parse_json(provider, body), provider, headers, self._origin)

    def _body(self, prompt: Prompt, *, streaming: bool, reasoning: bool = True) -> bytes:
        head, settings = self._head_cache.get(prompt.options, self._head, streaming=streaming)
        settings = settings if reasoning else without_reasoning(settings)
        messages = self._renamed.sent(_new_messages(prompt), prompt.options)
        messages = with_callers(messages, prompt.messages)
        items = self._message_cache.join(messages, settings, encode_message)
        return head.body({"input": b"[%b]" % items, **self._cache_keys.fields(prompt.options)})

    def _head(
        self, options: ChatOptions, *, streaming: bool
    ) -> tuple[RequestHead, EncodingSettings]:
        """Return the fields that *options* determine, and how the input is encoded."""
        body = encode_options(options, streaming=streaming, common=self._common, rules=self._rules)
        return RequestHead(body, options.extra), encoding_settings(options, self._origin)


def _new_messages(prompt: Prompt) -> tuple[Message, ...]:
    """Return the messages that the provider's conversation, if any, does not contain."""
    conversation = getattr(prompt.options, "conversation", None)
    messages = prompt.messages
    if conversation is not None:
        for at in reversed(range(len(messages))):
            if messages[at].metadata.get(CONVERSATION) == conversation:
                return messages[at + 1 :]
    return messages
