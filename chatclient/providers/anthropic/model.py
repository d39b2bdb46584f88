"""`AnthropicChatModel`: the Messages API, and its batches."""

import os
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, Unpack

from chatclient._internal.checks import check_number
from chatclient._internal.frozen import EMPTY
from chatclient._internal.json import dumps, dumps_exact
from chatclient.chat.message_merging import with_user_message
from chatclient.chat.messages import AssistantMessage, Message
from chatclient.chat.model import BatchAnswers, BatchApi, BatchItem, ChatModel, OutputMode, SendItem
from chatclient.chat.options import ChatOptions, model_options
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import ChatResponse
from chatclient.chat.server_tools import McpConnector, ServerTool
from chatclient.errors import ProviderError
from chatclient.providers.anthropic.decoding import StreamDecoder, decode_response
from chatclient.providers.anthropic.encoding import (
    ANTHROPIC,
    COMPATIBLE,
    PROVIDER,
    Dialect,
    EncodedConversation,
    without_trailing_space,
)
from chatclient.providers.anthropic.options import (
    MCP_BETA,
    PAUSED_TURNS,
    SERVER_TOOLS,
    cache_control,
    can_force_calls,
    check_enforceable,
    encode_options,
    is_enforceable,
    runs_tools,
    thinking_in,
    with_cache_control,
    with_container,
    without_own_breakpoints,
)
from chatclient.providers.http.auth import (
    Headers,
    Key,
    key_source,
    lower_case_headers,
)
from chatclient.providers.http.client import HttpAnswer, HttpClient
from chatclient.providers.http.continuation import max_continuations_of
from chatclient.providers.http.errors import error_from_data, parse_json
from chatclient.providers.http.model import (
    HttpModel,
    HttpOptions,
    HttpSettings,
    batched_model,
    json_lines,
    json_of,
)
from chatclient.providers.http.reader import EventReader, decode_body
from chatclient.providers.http.request import first_url, path_step
from chatclient.providers.wire.common_options import (
    count_breakpoints,
    ends_conversation,
    limit_breakpoints,
    with_last_block_marked,
)
from chatclient.providers.wire.request_body import EncodedOptions, RequestHead
from chatclient.providers.wire.sendable_schemas import ANTHROPIC_RULES
from chatclient.providers.wire.tools import (
    RenamedArguments,
    ServerTools,
    has_encoder,
    server_tools_in,
)
from chatclient.runtime.runtime import Runtime

_BASE_URL = "https://api.anthropic.com"
_PATH = "/v1/messages"
_BATCHES = f"{_PATH}/batches"
# Later versions do not support temperature, top_p and top_k.
_HEADERS = {"anthropic-version": "2023-06-01"}
_BETA = "anthropic-beta"
# platform.claude.com/docs/en/build-with-claude/structured-outputs: from Opus 4.1 and the other 4.5.
_WITHOUT_SCHEMAS = re.compile(r"claude-(?:[23]|instant|(?:opus|sonnet)-4-(?:0|2025))")


class AnthropicBatchApi(BatchApi):
    """Sends requests as one Message Batch.

    Args:
        http: The HTTP client of the model.
    """

    max_requests = 100_000
    max_bytes = 256_000_000

    def __init__(self, http: HttpClient) -> None:
        self._http = http

    async def submit(self, items: Sequence[BatchItem], runtime: Runtime) -> str:
        """Create the batch, with the beta features of all its requests."""
        requests = b",".join(
            b'{"custom_id":%b,"params":%b}' % (dumps(item.key), item.body) for item in items
        )
        betas = {item.headers[_BETA]: None for item in items if _BETA in item.headers}
        headers = {_BETA: ",".join(betas)} if betas else {}
        body = b'{"requests":[%b]}' % requests
        batch = await self._http.post(runtime, _BATCHES, body, json_of(self._http), headers)
        return str(batch["id"])

    async def answers(self, batch_id: str, runtime: Runtime) -> BatchAnswers | None:
        """Return the answers of a batch that has ended; None if it has not."""
        path = f"{_BATCHES}/{path_step(batch_id)}"
        batch = await self._http.get(runtime, path, json_of(self._http))
        if batch["processing_status"] != "ended":
            return None
        lines = await self._http.get(runtime, f"{path}/results", json_lines(self._http))
        return {line["custom_id"]: self._answer(line["result"]) for line in lines}

    async def cancel(self, batch_id: str, runtime: Runtime) -> None:
        """Cancel a batch."""
        path = f"{_BATCHES}/{path_step(batch_id)}/cancel"
        await self._http.post(runtime, path, b"{}", json_of(self._http))

    def _answer(self, result: Mapping[str, Any]) -> bytes | ProviderError:
        if result["type"] == "succeeded":
            return dumps_exact(result["message"]).encode()
        kind = result["type"]  # errored, canceled or expired
        body = result.get("error") or {"error": {"message": f"the request was {kind}"}}
        return error_from_data(self._http.provider, 0, body)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AnthropicChatOptions(ChatOptions):
    """Additional options of Anthropic's Messages API.

    The API requires `max_tokens`; the default is 16,384 plus the thinking budget.

    Attributes:
        thinking: A budget in tokens, a mode such as `adaptive` or `disabled`, or the complete
            value of the API's field.
        effort: Effort of the model, such as `low` or `max`.
        cache_ttl: Lifetime of the cache.
        server_tools: Server-side tools, in the API's format.
        max_continuations: Maximum number of requests that continue a turn paused by the provider;
            default 8.
        betas: Names for the `anthropic-beta` header.

    Raises:
        UsageError: *max_continuations* is not a number or negative, or an option of `ChatOptions`
            is invalid.
    """

    thinking: int | str | Mapping[str, Any] | None = None
    effort: str | None = None
    cache_ttl: Literal["5m", "1h"] | None = None
    server_tools: Sequence[Mapping[str, Any]] | None = None
    max_continuations: int | None = None
    betas: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        ChatOptions.__post_init__(self)  # slots: there is no `super()` without arguments
        if self.max_continuations is not None:
            check_number("max_continuations", self.max_continuations)


class _LastConversation(NamedTuple):
    """The conversation of the last request."""

    messages: tuple[Message, ...]
    dialect: Dialect
    conversation: EncodedConversation


class AnthropicChatModel(HttpModel, ChatModel):
    """A model of Anthropic's Messages API, or of a compatible server.

    Args:
        model: The model's name.
        api_key: The key, or a function that returns the current one; default: the environment's
            `ANTHROPIC_API_KEY`.
        base_url: URL of the API without its version; default: the environment's
            `ANTHROPIC_BASE_URL`, else Anthropic's.
        options: Default options.
        **http: `max_retries`, `timeout`, `headers` (which may override `anthropic-version`),
            `http_client`, `limits`; see `HttpOptions`.

    Raises:
        UsageError: The key is missing, *base_url* is not an HTTP URL, or *model* is blank.
    """

    _default_headers: Headers = _HEADERS
    _server_tools: ServerTools = SERVER_TOOLS
    _key_header = ("x-api-key", "")  # with the prefix of the key

    def __init__(
        self,
        model: str = "claude-haiku-4-5",
        *,
        api_key: Key = None,
        base_url: str | None = None,
        options: ChatOptions | None = None,
        **http: Unpack[HttpOptions],
    ) -> None:
        base_url = first_url(base_url, os.environ.get("ANTHROPIC_BASE_URL"), _BASE_URL)
        base_url = base_url.rstrip("/").removesuffix("/v1")
        self._dialect = ANTHROPIC if base_url == _BASE_URL else COMPATIBLE
        if self._dialect is ANTHROPIC:
            options = AnthropicChatOptions(cache="auto").merge(options)
        self._options = model_options(AnthropicChatOptions, model, options)
        required_by = "Anthropic" if self._dialect is ANTHROPIC else ""
        key = key_source(api_key, "ANTHROPIC_API_KEY", required_by=required_by)
        headers = lower_case_headers(http.get("headers"))
        http["headers"] = {**self._default_headers, **headers}
        header, scheme = self._key_header
        self._http = HttpSettings(**http).connect(
            PROVIDER, base_url, key, key_header=header, scheme=scheme, idempotent=True
        )
        # The application's headers may already contain beta features.
        self._betas = tuple(filter(None, [headers.get(_BETA)]))
        self._head_cache: EncodedOptions[RequestHead] = EncodedOptions()
        self._last = _LastConversation((), self._dialect, EncodedConversation())
        self._renamed = RenamedArguments(ANTHROPIC_RULES)

    @property
    def options(self) -> ChatOptions:
        """The default options."""
        return self._options

    def output_mode(self, options: ChatOptions) -> OutputMode:
        """Return how the model supports output schemas."""
        schema, model = options.output_schema, options.model or self.name
        if not _WITHOUT_SCHEMAS.search(model) and (schema is None or is_enforceable(schema)):
            return "schema"
        named = options if options.model else options.mutate(model=model)
        thinks = thinking_in(named).get("type", "disabled") != "disabled"
        return "tool" if can_force_calls(named) and not thinks else "instructions"

    def has_server_tool(self, tool: ServerTool, options: ChatOptions) -> bool:
        """Return whether the API has *tool*."""
        return has_encoder(tool, options, self._server_tools)

    def batched(self, send: SendItem) -> tuple[ChatModel, BatchApi] | None:
        """Return Anthropic's batch API, and a copy of this model whose requests go to *send*."""
        return batched_model(self, AnthropicBatchApi(self._http), send)

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        """Return the model's response to *prompt*."""

        async def ask(prompt: Prompt) -> ChatResponse:
            body = self._body(prompt, streaming=False)
            path, headers = self._path(prompt.options), self._headers(prompt.options)
            return await self._http.post(runtime, path, body, _decode, headers)

        answer = await PAUSED_TURNS.complete(ask, prompt, _max_continuations(prompt.options))
        return self._renamed.received(answer, prompt.options)

    def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Return the chunks of the model's response to *prompt*."""

        def ask(prompt: Prompt) -> AsyncGenerator[ChatResponse | str, None]:
            body = self._body(prompt, streaming=True)
            path = self._path(prompt.options, streaming=True)
            headers = self._headers(prompt.options)
            return self._http.stream(runtime, path, body, _reader, headers)

        # Without continuations, each chunk passes through one generator less.
        limit = _max_continuations(prompt.options)
        chunks = PAUSED_TURNS.stream(ask, prompt, limit) if limit else ask(prompt)
        return self._renamed.received_stream(chunks, prompt.options)

    def _path(self, options: ChatOptions, *, streaming: bool = False) -> str:  # noqa: ARG002 - for subclasses
        """Return the path of a request."""
        return _PATH

    def _headers(self, options: ChatOptions) -> Headers:
        """Return the additional headers of a request."""
        betas = getattr(options, "betas", None) or ()
        named = (betas,) if isinstance(betas, str) else tuple(betas)
        if McpConnector in self._server_tools and server_tools_in(options, McpConnector):
            named = (*named, MCP_BETA)
        return {_BETA: ",".join((*self._betas, *named))} if named else EMPTY

    def _body(self, prompt: Prompt, *, streaming: bool) -> bytes:
        messages = self._renamed.sent(prompt.messages, prompt.options)
        messages = with_user_message(messages)
        is_claude = "claude" in (prompt.options.model or self.name).lower()
        conversation = self._conversation(messages, ANTHROPIC if is_claude else self._dialect)
        turns = conversation.messages()
        options = without_own_breakpoints(with_container(prompt), conversation.system + turns)
        if options is not prompt.options:
            prompt = Prompt(prompt.messages, options)
        head = self._head_cache.get(options, self._head, streaming=streaming)
        system = with_cache_control(conversation.system, options, head.wire)
        fields = {"system": b"[%b]" % system} if system else {}
        rest = head.wire + system
        is_to_be_continued = conversation.role == "user"  # not a prefilled answer
        if is_to_be_continued and ends_conversation(prompt, count_breakpoints(rest + turns)):
            turns = with_last_block_marked(turns, dumps(cache_control(options)))
        turns = limit_breakpoints(turns, rest)
        return head.body({**fields, "messages": b"[%b]" % turns})

    def _head(self, options: ChatOptions, *, streaming: bool) -> RequestHead:
        if self._dialect is ANTHROPIC:
            check_enforceable(options.output_schema)
        return RequestHead(self._fields(options, streaming=streaming), options.extra)

    def _fields(self, options: ChatOptions, *, streaming: bool) -> dict[str, Any]:
        return encode_options(options, streaming=streaming, server_tools=self._server_tools)

    def _conversation(self, messages: tuple[Message, ...], dialect: Dialect) -> EncodedConversation:
        match messages:
            case (*_, AssistantMessage() as last):  # prefill
                ending = [without_trailing_space(last)]
                return self._encode(messages[:-1], dialect).plus(ending, dialect)
            case _:
                return self._encode(messages, dialect)

    def _encode(self, messages: tuple[Message, ...], dialect: Dialect) -> EncodedConversation:
        sent, last_dialect, conversation = self._last
        # Usually, the last request's messages are a prefix. Tuples compare items by identity first.
        size = len(sent)
        if last_dialect is not dialect or size > len(messages) or messages[:size] != sent:
            size, conversation = 0, EncodedConversation()
        conversation = conversation.plus(messages[size:], dialect)
        self._last = _LastConversation(messages, dialect, conversation)
        return conversation


def _max_continuations(options: ChatOptions) -> int:
    return max_continuations_of(options) if runs_tools(options) else 0


def _decode(answer: HttpAnswer) -> ChatResponse:
    headers = answer.headers
    return decode_body(answer.body, partial(_decode_json, headers), partial(_reader, headers))


def _decode_json(headers: Headers, body: bytes) -> ChatResponse:
    data = parse_json(PROVIDER, body, exact=b'"tool_use"' in body)
    return decode_response(data, headers)


def _reader(headers: Headers) -> EventReader:
    return EventReader(StreamDecoder(headers), partial(_decode_json, headers))
