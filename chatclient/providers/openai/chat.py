"""Chat models of OpenAI's Chat Completions API and compatible servers."""

import os
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack

from chatclient._internal.checks import check_type
from chatclient.chat.batch_api import BatchApi, SendItem
from chatclient.chat.model import ChatModel, OutputMode
from chatclient.chat.options import ChatOptions, model_options
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import ChatResponse
from chatclient.providers.http.auth import Headers, Key, key_source
from chatclient.providers.http.client import HttpAnswer, HttpClient
from chatclient.providers.http.errors import parse_json
from chatclient.providers.http.model import HttpModel, batched_model
from chatclient.providers.http.reader import EventReader, decode_body
from chatclient.providers.http.settings import HttpOptions, HttpSettings
from chatclient.providers.http.url import first_url
from chatclient.providers.openai.batch import OpenAIBatchApi
from chatclient.providers.openai.cache_key import CacheKeys
from chatclient.providers.openai.chat_decoding import decode_response
from chatclient.providers.openai.chat_encoding import encode_message, prepare_messages
from chatclient.providers.openai.chat_options import can_withhold, encode_options
from chatclient.providers.openai.chat_stream import StreamDecoder
from chatclient.providers.openai.dialect import (
    OPENAI,
    Dialect,
    SystemRole,
    with_system_role,
    with_think_tags,
)
from chatclient.providers.openai.efforts import reasons
from chatclient.providers.openai.presets import dialect_at
from chatclient.providers.wire.cache_control import limit_breakpoints, may_exceed_limit
from chatclient.providers.wire.json_cache import EncodedOptions, WireCache
from chatclient.providers.wire.request_body import RequestHead
from chatclient.providers.wire.sendable_tools import RenamedArguments
from chatclient.runtime.runtime import Runtime

BASE_URL = "https://api.openai.com/v1"
_PATH = "/chat/completions"
_OPENAI = re.compile(r"https?://([^/?#]*@)?([\w-]+\.)?api\.openai\.com(:\d+)?(/|\?|$)")


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
