"""`OpenAIChatModel` and its options: the Chat Completions API and compatible servers."""

import os
import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Any, Unpack

from chatclient._internal.checks import check_type
from chatclient._internal.frozen import EMPTY
from chatclient._internal.json import dumps
from chatclient._internal.json_schema import strict_form
from chatclient.chat.model import BatchApi, ChatModel, OutputMode, SendItem
from chatclient.chat.options import ChatOptions, model_options
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import ChatResponse
from chatclient.chat.tool import ToolDefinition
from chatclient.chat.turn import present_turn
from chatclient.chat.withheld_tool import allowed_names
from chatclient.providers.http.auth import Headers, Key, KeySource, key_source
from chatclient.providers.http.client import HttpAnswer, HttpClient
from chatclient.providers.http.errors import parse_json
from chatclient.providers.http.model import HttpModel, HttpOptions, HttpSettings, batched_model
from chatclient.providers.http.reader import EventReader, decode_body
from chatclient.providers.http.request import first_url
from chatclient.providers.openai.batch import OpenAIBatchApi
from chatclient.providers.openai.chat_decoding import decode_response
from chatclient.providers.openai.chat_encoding import encode_message, prepare_messages
from chatclient.providers.openai.chat_stream import StreamDecoder
from chatclient.providers.openai.dialect import (
    OPENAI,
    Dialect,
    SystemRole,
    dialect_at,
    reasons,
    with_system_role,
    with_think_tags,
)
from chatclient.providers.wire.common_options import (
    COMMON_OPTIONS,
    CommonOptions,
    Encode,
    automatic,
    field,
    is_off,
    lacking,
    limit_breakpoints,
    may_exceed_limit,
)
from chatclient.providers.wire.fields import option_fields
from chatclient.providers.wire.request_body import EncodedOptions, RequestHead, WireCache
from chatclient.providers.wire.tools import (
    RenamedArguments,
    sendable_definitions,
    server_tools_in,
    with_server_tools,
)
from chatclient.runtime.runtime import Runtime

_WITHHOLDING = re.compile(r"(^|[/:.])gpt-[5-9](?!.*-chat)")

_FIELD = "prompt_cache_key"

BASE_URL = "https://api.openai.com/v1"
_PATH = "/chat/completions"
_OPENAI = re.compile(r"https?://([^/?#]*@)?([\w-]+\.)?api\.openai\.com(:\d+)?(/|\?|$)")


@lru_cache(maxsize=64)
def common_options(dialect: Dialect) -> CommonOptions:
    """Return how the server takes the common options."""
    encoders: dict[str, Encode] = {
        **{name: field(name) for name in COMMON_OPTIONS},
        "max_tokens": field(dialect.max_tokens),
        "seed": field(dialect.seed),
        "tool_choice": _tool_choice if dialect.forces_calls else _unforced_tool_choice,
        "parallel_tool_calls": _parallel_tool_calls,
        "reasoning": dialect.reasoning,
        "cache": automatic,
        "user_id": field(dialect.user_id),
        **dialect.sampling,
        **{name: lacking(f"{dialect.provider} has no such option") for name in dialect.unsupported},
    }
    own = {"reasoning": ("reasoning_effort",), "user_id": ("user", "safety_identifier")}
    return CommonOptions(dialect.provider, encoders, own)


def _tool_choice(choice: str, options: ChatOptions) -> Mapping[str, Any]:
    if not options.tool_callbacks:
        return EMPTY
    if choice in ("auto", "none", "required"):
        return {"tool_choice": choice}
    return {"tool_choice": {"type": "function", "function": {"name": choice}}}


def can_withhold(options: ChatOptions) -> bool:
    """Return whether OpenAI's model in *options* can withhold tools.

    developers.openai.com, guide to GPT-5; not together with tools that the provider runs:
    github.com/openai/openai-python/issues/2537
    """
    own = getattr(options, "server_tools", None) or server_tools_in(options)
    return not own and _WITHHOLDING.search(options.model or "") is not None


def _unforced_tool_choice(choice: str, options: ChatOptions) -> Mapping[str, Any] | str:
    forced = choice not in ("auto", "none") and bool(options.tool_callbacks)
    # Models that reason cannot be forced. `deepseek-chat` does not; others by `thinking`.
    told = is_off(options.reasoning) or "thinking" in options.extra
    if forced and not told and "deepseek-chat" not in (options.model or ""):
        return "its models cannot be forced to call a tool"
    return _tool_choice(choice, options)


def _parallel_tool_calls(allowed: bool, options: ChatOptions) -> Mapping[str, Any]:  # noqa: FBT001
    return {"parallel_tool_calls": allowed} if options.tool_callbacks else EMPTY


_OPTION_FIELDS = {
    name: name
    for name in (
        *("model", "n", "reasoning_effort", "verbosity", "user"),
        *("safety_identifier", "logit_bias", "logprobs", "top_logprobs", "store", "modalities"),
        *("audio", "prediction", "prompt_cache_key", "prompt_cache_retention"),
        "web_search_options",
    )
}


def encode_options(options: ChatOptions, dialect: Dialect, *, streaming: bool) -> dict[str, Any]:
    """Return the fields of a request that its options determine."""
    common = common_options(dialect)
    options = common.settle(with_server_tools(options, dialect.provider))
    body = common.encode(options) | option_fields(options, _OPTION_FIELDS)
    renamed = (
        ("metadata", getattr(options, "request_metadata", None)),
        ("response_format", _response_format(options)),
    )
    body.update({name: value for name, value in renamed if value is not None})
    body.update(_tools(options, dialect))
    if (allowed := allowed_names(options)) is not None:
        if options.tool_choice == "none" or not allowed:
            body["tool_choice"] = "none"
        else:
            tools = [{"type": "function", "function": {"name": name}} for name in allowed]
            body["tool_choice"] = {
                "type": "allowed_tools",
                "allowed_tools": {"mode": options.tool_choice or "auto", "tools": tools},
            }
    body["stream"] = streaming  # some gateways stream by default
    if streaming and dialect.usage_in_stream:
        body["stream_options"] = {"include_usage": True}
    return body


def _tools(options: ChatOptions, dialect: Dialect) -> dict[str, Any]:
    if not options.tool_callbacks:
        return {}
    strict: bool | None = getattr(options, "strict_tools", None)
    definitions = sendable_definitions(options, dialect.tool_schemas)
    tools = [_tool(each, dialect.provider, strict=strict) for each in definitions]
    return {"tools": tools}


def _tool(definition: ToolDefinition, provider: str, *, strict: bool | None) -> dict[str, Any]:
    provider_options = definition.provider_options.get(provider, EMPTY)
    definition = with_own_strict(definition, provider_options)
    function: dict[str, Any] = {
        **provider_options,
        "name": definition.name,
        "description": definition.description,
        "parameters": definition.input_schema,
    }
    if definition.strict is not None:
        function["strict"] = definition.strict
    elif strict is not None:
        strict_schema = enforceable(definition.input_schema) if strict else None
        function["strict"] = strict_schema is not None
        function["parameters"] = strict_schema or definition.input_schema
    return {"type": "function", "function": function}


def _response_format(options: ChatOptions) -> Mapping[str, Any] | None:
    schema = options.output_schema
    if schema is None:
        return getattr(options, "response_format", None)
    return {"type": "json_schema", "json_schema": json_schema_format(schema)}


def json_schema_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return *schema* as the `json_schema` response format of both OpenAI APIs."""
    # The API rejects names such as `list[Film]`.
    name = re.sub(r"[^a-zA-Z0-9_-]+", "_", str(schema.get("title") or "")).strip("_")[:64]
    strict_schema = enforceable(schema)
    return {
        "name": name or "answer",
        "schema": strict_schema or schema,
        "strict": strict_schema is not None,
    }


def enforceable(schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return *schema* in the form that strict mode requires, or None.

    Open objects and optional properties have no equivalent in strict mode. Unsupported keywords,
    such as lengths, are removed.
    """
    return strict_form(schema) if _is_closed(schema) else None


def with_own_strict(
    definition: ToolDefinition, provider_options: Mapping[str, Any]
) -> ToolDefinition:
    """Return *definition* as strict as in *provider_options*, its options for the provider.

    A schema that has no strict form stays as it is, and is not enforced.
    """
    if "strict" not in provider_options or provider_options["strict"] == definition.strict:
        return definition
    strict_schema = strict_form(definition.input_schema) if provider_options["strict"] else None
    return replace(
        definition,
        strict=strict_schema is not None,
        input_schema=definition.input_schema if strict_schema is None else strict_schema,
    )


def _is_closed(schema: Any) -> bool:
    """Return whether all objects of a schema are closed, and all their properties required."""
    if isinstance(schema, list | tuple):
        return all(_is_closed(item) for item in schema)
    if not isinstance(schema, Mapping):
        return True
    properties = schema.get("properties")
    if isinstance(properties, Mapping) or schema.get("type") == "object":
        named = properties if isinstance(properties, Mapping) else {}
        if schema.get("additionalProperties") is not False:
            return False
        if set(named) != set(schema.get("required") or ()):
            return False
        return all(_is_closed(value) for value in (*named.values(), *_definitions(schema)))
    return all(_is_closed(value) for value in schema.values())


def _definitions(schema: Mapping[str, Any]) -> Iterator[Any]:
    for key in ("$defs", "definitions"):
        yield from (schema.get(key) or {}).values()


class CacheKeys:
    """Makes keys of conversations.

    OpenAI sends requests with the same key and the same beginning to the same machine, which has
    cached them. A key is a hash of the conversation's id, keyed with the API key, so that it does
    not reveal the id, and is the same in all processes of an application.

    Args:
        api_key: The key of the API. With a function that returns one there are no keys of
            conversations, because it may return another one each time.
    """

    __slots__ = ("_secret",)

    def __init__(self, api_key: KeySource | None) -> None:
        known = isinstance(api_key, str) and bool(api_key)
        self._secret = blake2b(str(api_key).encode(), digest_size=32).digest() if known else None

    def fields(self, options: ChatOptions) -> Mapping[str, bytes]:
        """Return the field, as JSON, for a request with *options* in the present turn.

        It is empty outside of a conversation, and if the options have a key.
        """
        turn = present_turn()
        if self._secret is None or turn is None or turn.conversation_id is None:
            return EMPTY
        if getattr(options, _FIELD, None) is not None or _FIELD in options.extra:
            return EMPTY
        conversation = str(turn.conversation_id).encode("utf-8", "surrogatepass")
        return {_FIELD: dumps(blake2b(conversation, key=self._secret, digest_size=16).hexdigest())}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OpenAIChatOptions(ChatOptions):
    """Additional options of OpenAI's Chat Completions.

    OpenAI has no `top_k`, and its reasoning models take no sampling options; other servers do.

    Attributes:
        n: Number of answers.
        reasoning_effort: Effort of a reasoning model, from `none` to `xhigh`.
        verbosity: Length of the answer: `low`, `medium` or `high`.
        user: The end user; replaced by `user_id` and `prompt_cache_key`.
        safety_identifier: The end user, for the provider's abuse detection; also sent for
            `user_id`.
        logit_bias: Bias of single tokens, by token id.
        logprobs: Whether to report log probabilities, in `Generation.metadata`.
        top_logprobs: Number of alternatives to report for each token.
        store: Whether the provider stores the answer.
        request_metadata: Metadata that the provider stores.
        modalities: Output types, such as `text` and `audio`.
        audio: Voice and format of audio answers.
        prediction: Expected text of large parts of the answer.
        prompt_cache_key: Routes requests with this key to the same cache. Default, for OpenAI
            itself: a hash of the conversation's id, keyed with the API key.
        prompt_cache_retention: Retention time of the prompt cache: `in_memory` or `24h`.
        web_search_options: Enables the provider's web search.
        response_format: Format of the answer, such as `{"type": "json_object"}`; ignored if there
            is an `output_schema`.
        strict_tools: Default of `strict` for tools whose schemas allow strict mode.
        system_role: Role of system messages: `system`, `developer`, or `user` for models that
            support neither (o1-mini).
    """

    n: int | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
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


class OpenAIChatModel(HttpModel, ChatModel):
    """A model of OpenAI's Chat Completions API, or of a compatible server.

    Args:
        model: The model's name.
        api_key: The key, or a function that returns the current one; default: the environment's
            `OPENAI_API_KEY`.
        base_url: URL of the API with its version, and a query if the server needs one; default: the
            environment's `OPENAI_BASE_URL`, else OpenAI's.
        options: Default options.
        dialect: Differences of the server from OpenAI's; default: those of a known host, else
            `COMPATIBLE`.
        think_tags: Whether reasoning in `<think>` or `<mm:think>` tags at the beginning of answers
            becomes `Reasoning`; default: that of the dialect.
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
        dialect: Dialect | None = None,
        think_tags: bool | None = None,
        **http: Unpack[HttpOptions],
    ) -> None:
        base_url = openai_url(base_url)
        if dialect is not None:
            check_type("dialect", dialect, Dialect)
        self._dialect = with_think_tags(dialect or dialect_for(base_url), enabled=think_tags)
        self._options = model_options(OpenAIChatOptions, model, options)
        self._http = connect(base_url, api_key, http, dialect=self._dialect, idempotent=True)
        self._is_openai = is_openai(base_url)
        self._cache_keys = cache_keys(base_url, api_key)
        self._head_cache: EncodedOptions[tuple[RequestHead, Dialect]] = EncodedOptions()
        self._message_cache = WireCache()
        self._renamed = RenamedArguments(self._dialect.tool_schemas)

    @property
    def provider(self) -> str:
        """The provider's name, from the dialect."""
        return self._dialect.provider

    @property
    def options(self) -> ChatOptions:
        """The default options."""
        return self._options

    def output_mode(self, options: ChatOptions) -> OutputMode:
        """Return how the model supports output schemas."""
        enforced = self._dialect.output_schema
        if enforced == "always" or (enforced == "without_tools" and not options.tool_callbacks):
            return "schema"
        return "tool" if self._dialect.forces_calls else "instructions"

    def can_withhold_tools(self, options: ChatOptions) -> bool:
        """Return whether OpenAI can restrict calls to some of the tools that it is sent."""
        return self._is_openai and can_withhold(options)

    def offers_logprobs(self, options: ChatOptions) -> bool:
        """Return whether the server reports log probabilities; models that reason do not."""
        return self._dialect.logprobs and not reasons(options)

    def batched(self, send: SendItem) -> tuple[ChatModel, BatchApi]:
        """Return OpenAI's batch API, and a copy of this model whose requests go to *send*."""
        return batched_model(self, OpenAIBatchApi(self._http), send)

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        """Return the model's response to *prompt*."""
        body = self._body(prompt, streaming=False)
        answer = await self._http.post(runtime, _PATH, body, self._decode)
        return self._renamed.received(answer, prompt.options)

    def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Return the chunks of the model's response to *prompt*."""
        body = self._body(prompt, streaming=True)
        chunks = self._http.stream(runtime, _PATH, body, self._reader)
        return self._renamed.received_stream(chunks, prompt.options)

    def _reader(self, headers: Headers) -> EventReader:
        return EventReader(
            StreamDecoder(self._dialect, headers), partial(self._decode_json, headers)
        )

    def _decode(self, answer: HttpAnswer) -> ChatResponse:
        headers = answer.headers
        return decode_body(
            answer.body, partial(self._decode_json, headers), partial(self._reader, headers)
        )

    def _decode_json(self, headers: Headers, body: bytes) -> ChatResponse:
        data = parse_json(self._dialect.provider, body)
        return decode_response(data, self._dialect, headers)

    def _body(self, prompt: Prompt, *, streaming: bool) -> bytes:
        head, dialect = self._head_cache.get(prompt.options, self._head, streaming=streaming)
        renamed = self._renamed.sent(prompt.messages, prompt.options)
        messages = self._message_cache.join(
            prepare_messages(renamed, dialect), dialect, encode_message
        )
        if dialect.takes_cache_control and may_exceed_limit(prompt.messages):
            messages = limit_breakpoints(messages)
        return head.body(
            {"messages": b"[%b]" % messages, **self._cache_keys.fields(prompt.options)}
        )

    def _head(self, options: ChatOptions, *, streaming: bool) -> tuple[RequestHead, Dialect]:
        """Return the fields that *options* determine, and the dialect of the messages."""
        role: SystemRole | None = getattr(options, "system_role", None)
        dialect = self._dialect if role is None else with_system_role(self._dialect, role)
        fields = encode_options(options, dialect, streaming=streaming)
        return RequestHead(fields, options.extra), dialect


def is_openai(base_url: str) -> bool:
    """Return whether *base_url* is OpenAI's, including its regional URLs."""
    return _OPENAI.match(base_url) is not None


def dialect_for(base_url: str) -> Dialect:
    """Return the default dialect for *base_url*."""
    return OPENAI if is_openai(base_url) else dialect_at(base_url)


def cache_keys(base_url: str, api_key: Key) -> CacheKeys:
    """Return the keys of conversations for OpenAI; none for servers that may refuse the field."""
    return CacheKeys(key_source(api_key, "OPENAI_API_KEY") if is_openai(base_url) else None)


def openai_url(base_url: str | None) -> str:
    """Return *base_url*, else the environment's, else OpenAI's."""
    return first_url(base_url, os.environ.get("OPENAI_BASE_URL"), BASE_URL)


def connect(
    base_url: str,
    api_key: Key,
    http: HttpOptions,
    *,
    dialect: Dialect | None = None,
    idempotent: bool = False,
) -> HttpClient:
    """Return a client of OpenAI or a compatible server; only OpenAI's URL requires a key."""
    required_by = "OpenAI" if is_openai(base_url) else ""
    key = key_source(api_key, "OPENAI_API_KEY", required_by=required_by)
    dialect = dialect or dialect_for(base_url)
    header = dialect.key_header
    scheme = "Bearer " if header == "authorization" else ""
    return HttpSettings(**http).connect(
        dialect.provider, base_url, key, key_header=header, scheme=scheme, idempotent=idempotent
    )
