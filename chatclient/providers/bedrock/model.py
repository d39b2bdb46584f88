"""Chat models of Amazon Bedrock."""

from collections.abc import AsyncGenerator
from functools import partial
from typing import TYPE_CHECKING, Unpack

from chatclient._internal.json import dumps
from chatclient.chat.message_merging import with_user_message
from chatclient.chat.messages import AssistantMessage
from chatclient.chat.model import ChatModel, OutputMode
from chatclient.chat.options import ChatOptions, model_options
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import ChatResponse
from chatclient.providers.anthropic.encoding import EncodedConversation, without_trailing_space
from chatclient.providers.bedrock.aws import (
    endpoint_of,
    new_session,
    region_of,
    require_botocore,
    signer,
)
from chatclient.providers.bedrock.decoding import decode_response
from chatclient.providers.bedrock.encoding import (
    CACHE_POINT,
    CONVERSE,
    PROVIDER,
    encode_blocks,
    settle_points,
    with_unique_names,
)
from chatclient.providers.bedrock.frames import MessageSplitter, is_text
from chatclient.providers.bedrock.options import (
    BedrockChatOptions,
    encode_options,
    encode_tools,
    forces_calls,
    is_nova,
    thinking_in,
)
from chatclient.providers.bedrock.stream import StreamDecoder
from chatclient.providers.http.auth import Headers, Key, key_source
from chatclient.providers.http.client import HttpAnswer
from chatclient.providers.http.errors import parse_json
from chatclient.providers.http.model import HttpModel
from chatclient.providers.http.reader import EventReader, join_stream
from chatclient.providers.http.settings import HttpOptions, HttpSettings
from chatclient.providers.http.url import first_url, path_step
from chatclient.providers.wire.cache_control import ends_conversation
from chatclient.providers.wire.json_cache import EncodedOptions
from chatclient.providers.wire.request_body import RequestHead
from chatclient.providers.wire.sendable_schemas import ANTHROPIC_RULES
from chatclient.providers.wire.sendable_tools import RenamedArguments
from chatclient.runtime.runtime import Runtime

if TYPE_CHECKING:
    from botocore.session import Session

_CACHE_POINT = dumps(CACHE_POINT)
_POINT = b'"cachePoint":'  # of any lifetime


class BedrockChatModel(HttpModel, ChatModel):
    """A model of Amazon Bedrock, asked with the Converse API (extra `bedrock`).

    Requests are signed with the AWS credentials of the environment, a profile, a role or whatever
    else botocore finds, unless there is a Bedrock API key.

    Args:
        model: The id of a model or inference profile, such as `us.amazon.nova-2-lite-v1:0`, or an
            ARN.
        api_key: A Bedrock API key, or a function that returns the current one; default: the
            environment's `AWS_BEARER_TOKEN_BEDROCK`, else the AWS credentials.
        region: The AWS region; default: the environment's `AWS_REGION` or the profile's.
        session: A session of botocore with other credentials, another profile or region.
        base_url: URL of the service; default: that of the region.
        options: Default options.
        **http: `max_retries`, `timeout`, `headers`, `http_client`, `limits`; see `HttpOptions`.

    Raises:
        UsageError: botocore is not installed, there is no region, *base_url* is not an HTTP URL, or
            *model* is blank.
    """

    def __init__(
        self,
        model: str,
        *,
        api_key: Key = None,
        region: str | None = None,
        session: "Session | None" = None,
        base_url: str | None = None,
        options: ChatOptions | None = None,
        **http: Unpack[HttpOptions],
    ) -> None:
        self._options = model_options(BedrockChatOptions, model, options)
        require_botocore()  # also for streams
        key = key_source(api_key, "AWS_BEARER_TOKEN_BEDROCK")
        url, sign = first_url(base_url), None
        if not (url and key):
            session = session or new_session()
            region = region_of(session, region)
            url = url or endpoint_of(session, region)
            sign = None if key else signer(session, region)
        self._http = HttpSettings(**http).connect(PROVIDER, url, key, sign=sign)
        self._head_cache: EncodedOptions[RequestHead] = EncodedOptions()
        self._renamed = RenamedArguments(ANTHROPIC_RULES)

    @property
    def options(self) -> ChatOptions:
        """The default options."""
        return self._options

    def output_mode(self, options: ChatOptions) -> OutputMode:
        """Return how the model returns JSON: few models of Bedrock enforce schemas."""
        # Claude cannot be forced to call a tool while it thinks.
        thinks = thinking_in(options).get("type", "disabled") != "disabled"
        forced = forces_calls(options.model or self.name) and not thinks
        return "tool" if forced else "instructions"

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        """Return the model's response to *prompt*."""
        path, body = self._path(prompt, "converse"), self._body(prompt, streaming=False)
        answer = await self._http.post(runtime, path, body, _decode)
        return self._renamed.received(answer, prompt.options)

    def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Return the chunks of the model's response to *prompt*."""
        path, body = self._path(prompt, "converse-stream"), self._body(prompt, streaming=True)
        chunks = self._http.stream(runtime, path, body, _reader)
        return self._renamed.received_stream(chunks, prompt.options)

    def _path(self, prompt: Prompt, operation: str) -> str:
        # Colons are not quoted, because aiohttp would send them unquoted, and not as signed.
        return f"/model/{path_step(prompt.options.model or self.name, safe=':')}/{operation}"

    def _body(self, prompt: Prompt, *, streaming: bool) -> bytes:
        messages = with_user_message(self._renamed.sent(prompt.messages, prompt.options))
        messages = with_unique_names(messages)
        if messages and isinstance(last := messages[-1], AssistantMessage):  # prefill
            messages = (*messages[:-1], without_trailing_space(last))
        sent = EncodedConversation().plus(messages, CONVERSE, encode_blocks)
        turns, system, options = sent.messages(), sent.system, prompt.options
        if options.cache == "auto" and _POINT in turns + system + dumps(dict(options.extra)):
            options = options.mutate(cache=None)
            prompt = Prompt(prompt.messages, options)
        if sent.role == "user" and ends_conversation(prompt, 0):
            turns = b"%b,%b]}" % (turns.removesuffix(b"]}"), _CACHE_POINT)
        if system and options.cache not in (None, "tools"):
            system = b"%b,%b" % (system, _CACHE_POINT)
        tools = encode_tools(options, prompt.messages)
        head = self._head_cache.get(options, _head, streaming=streaming)
        others = (dumps(tools) if tools else b"") + head.wire
        model = options.model or self.name
        turns, system = settle_points(turns, system, others, nova=is_nova(model))
        fields = {"messages": b"[%b]" % turns}
        if system:
            fields["system"] = b"[%b]" % system
        if tools:
            fields["toolConfig"] = dumps(tools)
        return head.body(fields)


def _head(options: ChatOptions, *, streaming: bool) -> RequestHead:
    return RequestHead(encode_options(options, streaming=streaming), options.extra)


def _decode(answer: HttpAnswer) -> ChatResponse:
    if answer.body and not is_text(answer.body):  # from a gateway that always streams
        return join_stream(_reader(answer.headers), answer.body)
    return _decode_json(answer.headers, answer.body)


def _decode_json(headers: Headers, body: bytes) -> ChatResponse:
    return decode_response(parse_json(PROVIDER, body, exact=b'"toolUse"' in body), headers)


def _reader(headers: Headers) -> EventReader:
    return EventReader(StreamDecoder(headers), partial(_decode_json, headers), MessageSplitter())
