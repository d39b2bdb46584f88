"""`OpenAIResponsesChatModel` and its options: OpenAI's Responses API and compatible servers."""

import re
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Unpack
from urllib.parse import urlsplit

from chatclient._internal.frozen import EMPTY
from chatclient._internal.logging import described, get_logger
from chatclient.chat.messages import Message
from chatclient.chat.model import BatchApi, ChatModel, SendItem
from chatclient.chat.options import ChatOptions, model_options
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import ChatResponse
from chatclient.chat.server_tools import (
    CodeExecution,
    FileSearch,
    ImageGeneration,
    McpConnector,
    ServerTool,
    ToolSearch,
    WebSearch,
)
from chatclient.chat.tool import ToolDefinition
from chatclient.chat.withheld_tool import allowed_names
from chatclient.errors import InvalidRequestError
from chatclient.providers.http.auth import Headers, Key
from chatclient.providers.http.client import HttpAnswer
from chatclient.providers.http.errors import parse_json
from chatclient.providers.http.model import HttpModel, HttpOptions, batched_model
from chatclient.providers.http.reader import EventReader, decode_body
from chatclient.providers.openai.batch import OpenAIBatchApi
from chatclient.providers.openai.chat import (
    cache_keys,
    can_withhold,
    connect,
    enforceable,
    is_openai,
    json_schema_format,
    openai_url,
    with_own_strict,
)
from chatclient.providers.openai.dialect import SAMPLING, effort, openai_effort
from chatclient.providers.openai.responses_decoding import decode_response
from chatclient.providers.openai.responses_encoding import (
    CONVERSATION,
    PROVIDER,
    EncodingSettings,
    SystemRole,
    encode_message,
    with_callers,
)
from chatclient.providers.openai.responses_stream import StreamDecoder
from chatclient.providers.wire.common_options import (
    COMMON_OPTIONS,
    CommonOptions,
    Encode,
    automatic,
    field,
    lacking,
)
from chatclient.providers.wire.fields import option_fields
from chatclient.providers.wire.request_body import EncodedOptions, RequestHead, WireCache
from chatclient.providers.wire.sendable_schemas import COMPATIBLE_RULES, OPENAI_RULES, SchemaRules
from chatclient.providers.wire.tools import (
    RenamedArguments,
    ServerTools,
    deferred_tools,
    has_encoder,
    sendable_definitions,
    with_server_tools,
)
from chatclient.runtime.runtime import Runtime

# developers.openai.com/api/docs/guides/tools-tool-search: from GPT-5.4, without GPT-5.4 nano.
_WITH_TOOL_SEARCH = re.compile(r"gpt-(?:5\.(?:4(?!-nano)|[5-9]|\d\d)|[6-9])")

_NAMES = {
    name: name
    for name in (
        *("model", "instructions", "previous_response_id", "conversation"),
        *("background", "truncation", "prompt_cache_key", "prompt_cache_retention"),
        *("user", "safety_identifier", "top_logprobs", "max_tool_calls"),
    )
} | {"request_metadata": "metadata"}
_REASONING_NAMES = {"reasoning_effort": "effort", "reasoning_summary": "summary"}
_TEXT_NAMES = {"verbosity": "verbosity", "response_format": "format"}
_ENCRYPTED_REASONING = "reasoning.encrypted_content"
# Other models reject requests for encrypted reasoning. The name may have a vendor prefix.
_REASONING_MODEL = re.compile(r"(^|[/:.])(o\d|gpt-[5-9](?!.*-chat)|codex|grok)")
# These models also reject reasoning items of other models.
_REASONLESS_MODEL = re.compile(r"(^|[/:.])(chatgpt|gpt-[34]|gpt-[5-9].*-chat)")

log = get_logger(__name__)

_PATH = "/responses"
_ENCRYPTED = b'"encrypted_content":"'
# The code is `invalid_encrypted_content`; other services have different messages.
_UNREADABLE_REASONING = re.compile(r"encrypted[ _]content", re.IGNORECASE)


def _search(tool: WebSearch, _options: ChatOptions) -> Mapping[str, Any] | str:
    if tool.max_uses is not None:
        return "it has no maximum number of searches"
    domains = {"allowed_domains": tool.allowed_domains, "blocked_domains": tool.blocked_domains}
    filters = {name: value for name, value in domains.items() if value}
    return {"type": "web_search", **({"filters": filters} if filters else {})}


def _files(tool: FileSearch, _options: ChatOptions) -> Mapping[str, Any]:
    limit = {} if tool.max_results is None else {"max_num_results": tool.max_results}
    return {"type": "file_search", "vector_store_ids": tool.stores, **limit}


def _image(tool: ImageGeneration, _options: ChatOptions) -> Mapping[str, Any]:
    fields = {"size": tool.size, "quality": tool.quality}
    given = {name: value for name, value in fields.items() if value is not None}
    return {"type": "image_generation", **given}


def _mcp(tool: McpConnector, _options: ChatOptions) -> Mapping[str, Any]:
    fields = {"authorization": tool.authorization, "allowed_tools": tool.allowed_tools or None}
    given = {name: value for name, value in fields.items() if value is not None}
    return {
        "type": "mcp",
        "server_label": tool.label,
        "server_url": tool.url,
        "require_approval": "never",
        **given,
    }


def _tool_search(tool: ToolSearch, options: ChatOptions) -> Mapping[str, Any] | str:
    if not _WITH_TOOL_SEARCH.match(options.model or ""):
        return "it cannot search tools; GPT can from version 5.4"
    if tool.variant is not None:
        return "it has one kind of tool search"
    return {"type": "tool_search"}


SERVER_TOOLS: ServerTools = {
    WebSearch: _search,
    CodeExecution: lambda _tool, _options: {
        "type": "code_interpreter",
        "container": {"type": "auto"},
    },
    FileSearch: _files,
    ImageGeneration: _image,
    McpConnector: _mcp,
    ToolSearch: _tool_search,
}
"""The encoder of each server tool that the API has."""


def _tool_choice(choice: str, options: ChatOptions) -> Mapping[str, Any]:
    builtin = getattr(options, "server_tools", None) or ()
    if not builtin and not options.tool_callbacks:
        return EMPTY
    return {"tool_choice": _chosen_tool(choice, builtin)}


def _parallel_tool_calls(allowed: bool, options: ChatOptions) -> Mapping[str, Any]:  # noqa: FBT001
    has_tools = options.tool_callbacks or getattr(options, "server_tools", None)
    return {"parallel_tool_calls": allowed} if has_tools else EMPTY


_COMPATIBLE: Mapping[str, Encode] = {
    **{name: field(name) for name in COMMON_OPTIONS},
    "max_tokens": field("max_output_tokens"),
    "tool_choice": _tool_choice,
    "parallel_tool_calls": _parallel_tool_calls,
    "reasoning": effort("none", "low", "medium", "high", path="reasoning.effort"),
    "cache": automatic,
    "user_id": field("safety_identifier"),
}
# developers.openai.com/api/reference/resources/responses/methods/create
_MISSING = ("top_k", "stop", "seed", "presence_penalty", "frequency_penalty")
_OPENAI: Mapping[str, Encode] = {
    **_COMPATIBLE,
    **SAMPLING,
    **{name: lacking("the Responses API has no such option") for name in _MISSING},
    "reasoning": openai_effort("reasoning.effort"),
}
_OWN = {"reasoning": ("reasoning_effort",), "user_id": ("user", "safety_identifier")}
OPENAI_OPTIONS = CommonOptions("OpenAI", _OPENAI, _OWN)
"""How OpenAI's Responses take the common options."""
COMPATIBLE_OPTIONS = CommonOptions("openai-compatible", _COMPATIBLE, _OWN)
"""How the Responses of compatible servers take the common options."""


# Caches compare settings by identity, so equal values must give the same object.
_settings = lru_cache(maxsize=64)(EncodingSettings)


def encoding_settings(options: ChatOptions, origin: str = PROVIDER) -> EncodingSettings:
    """Return how messages are encoded for *options* and the server *origin*."""
    values = options.set_values()
    custom = [tool for tool in values.get("server_tools", ()) if tool.get("type") == "custom"]
    return _settings(
        values.get("system_role", "system"),
        _is_stored(values),
        frozenset(tool["name"] for tool in custom),
        _REASONLESS_MODEL.search(values.get("model", "")) is None,
        origin,
    )


def without_reasoning(settings: EncodingSettings) -> EncodingSettings:
    """Return *settings* for a model that takes no reasoning."""
    return _settings(
        settings.system_role,
        settings.stored,
        settings.custom_tools,
        False,  # noqa: FBT003 - equal arguments are cached
        settings.origin,
    )


def encode_options(
    options: ChatOptions,
    *,
    streaming: bool,
    common: CommonOptions = OPENAI_OPTIONS,
    rules: SchemaRules = OPENAI_RULES,
) -> dict[str, Any]:
    """Return the fields of a request that its options determine."""
    deferred = deferred_tools(options, SERVER_TOOLS)
    options = common.settle(with_server_tools(options, common.provider, SERVER_TOOLS))
    given = options.set_values()
    stored = _is_stored(given)
    body = common.encode(options) | option_fields(options, _NAMES)
    body["store"] = stored
    if include := _include(given, stored=stored):
        body["include"] = include
    if reasoning := option_fields(options, _REASONING_NAMES):
        body["reasoning"] = {**body.get("reasoning", {}), **reasoning}
    if text := _text(options):
        body["text"] = text
    tools = _tools(given, encoding_settings(options), sendable_definitions(options, rules))
    for tool in tools.get("tools", ()) if deferred else ():
        if tool["type"] == "function" and tool["name"] in deferred:
            tool["defer_loading"] = True
    body |= tools
    if (allowed := allowed_names(options)) is not None:
        if options.tool_choice == "none" or not allowed:
            body["tool_choice"] = "none"
        else:
            callable_ = [{"type": "function", "name": name} for name in allowed]
            body["tool_choice"] = {
                "type": "allowed_tools",
                "mode": options.tool_choice or "auto",
                "tools": callable_,
            }
    body["stream"] = streaming  # some gateways stream by default
    return body


def _is_stored(given: Mapping[str, Any]) -> bool:
    # A background response is stored until it is fetched.
    stored: bool = given.get("store", bool(given.get("background")))
    return stored


def _include(given: Mapping[str, Any], *, stored: bool) -> list[str]:
    include = list(given.get("include", ()))
    reasons = _REASONING_MODEL.search(given.get("model", "")) is not None
    if (
        reasons
        and not stored
        and given.get("include") != ()
        and _ENCRYPTED_REASONING not in include
    ):
        include.append(_ENCRYPTED_REASONING)
    return include


def _text(options: ChatOptions) -> dict[str, Any]:
    text = option_fields(options, _TEXT_NAMES)
    if options.output_schema is not None:
        text["format"] = {"type": "json_schema", **json_schema_format(options.output_schema)}
    return text


def _tools(
    given: Mapping[str, Any], settings: EncodingSettings, definitions: Iterable[ToolDefinition]
) -> dict[str, Any]:
    builtin: Iterable[Mapping[str, Any]] = given.get("server_tools", ())
    strict: bool = given.get("strict_tools", False)
    functions = [_function(d, strict) for d in definitions if d.name not in settings.custom_tools]
    if not functions and not builtin:
        return {}
    return {"tools": [*functions, *builtin]}


def _function(definition: ToolDefinition, strict: bool) -> dict[str, Any]:  # noqa: FBT001
    provider_options = definition.provider_options.get(PROVIDER, EMPTY)
    definition = with_own_strict(definition, provider_options)
    enforce = strict and definition.strict is None
    strict_schema = enforceable(definition.input_schema) if enforce else None
    return {
        **provider_options,
        "type": "function",
        "name": definition.name,
        "description": definition.description,
        "parameters": strict_schema or definition.input_schema,
        # The default is true, with which the provider changes the schema.
        "strict": definition.strict or strict_schema is not None,
    }


def _chosen_tool(choice: str, builtin: Iterable[Mapping[str, Any]]) -> Any:
    if choice in ("auto", "none", "required"):
        return choice
    for tool in builtin:
        if choice == tool.get("server_label"):
            return {"type": "mcp", "server_label": choice}
        if choice == tool.get("name"):
            return {"type": tool["type"], "name": choice}
        if choice == tool["type"]:
            return {"type": choice}
    return {"type": "function", "name": choice}


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
