"""`BedrockChatModel`: the Converse API, with credentials and signatures of AWS through botocore."""

import os
import time
from collections.abc import AsyncGenerator
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from chatclient._internal.extras import needed_by
from chatclient._internal.json import dumps
from chatclient.chat.message_merging import with_user_message
from chatclient.chat.messages import AssistantMessage
from chatclient.chat.model import ChatModel, OutputMode
from chatclient.chat.options import ChatOptions, model_options
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import ChatResponse
from chatclient.errors import AuthenticationError, ConnectionFailedError, UsageError
from chatclient.providers.anthropic.encoding import EncodedConversation, without_trailing_space
from chatclient.providers.bedrock.decoding import (
    MessageSplitter,
    StreamDecoder,
    decode_response,
    is_text,
)
from chatclient.providers.bedrock.encoding import (
    CACHE_POINT,
    CONVERSE,
    PROVIDER,
    BedrockChatOptions,
    encode_blocks,
    encode_options,
    encode_tools,
    forces_calls,
    is_nova,
    settle_points,
    thinking_in,
    with_unique_names,
)
from chatclient.providers.http.auth import (
    TOKEN_SECONDS,
    ExpiringCredentials,
    Headers,
    Key,
    SecretHeaders,
    Signer,
    key_source,
    token_service_error,
)
from chatclient.providers.http.client import HttpAnswer
from chatclient.providers.http.errors import parse_json
from chatclient.providers.http.model import HttpModel, HttpOptions, HttpSettings
from chatclient.providers.http.reader import EventReader, join_stream
from chatclient.providers.http.request import first_url, path_step
from chatclient.providers.wire.common_options import ends_conversation
from chatclient.providers.wire.request_body import EncodedOptions, RequestHead
from chatclient.providers.wire.sendable_schemas import ANTHROPIC_RULES
from chatclient.providers.wire.tools import RenamedArguments
from chatclient.runtime.runtime import Runtime

if TYPE_CHECKING:
    from botocore.credentials import ReadOnlyCredentials
    from botocore.session import Session


_SERVICE = "bedrock-runtime"
_SIGNING_NAME = "bedrock"
# botocore renews credentials itself, which can take seconds; it is asked this often.
_CHECK_SECONDS = 60.0

_CACHE_POINT = dumps(CACHE_POINT)
_POINT = b'"cachePoint":'  # of any lifetime


def require_botocore() -> None:
    """Check that botocore is installed.

    Raises:
        UsageError: It is not.
    """
    with needed_by("Bedrock"):
        import botocore.session  # noqa: F401, PLC0415 - an extra


def new_session() -> "Session":
    """Return a botocore session with the settings of the environment."""
    from botocore.config import Config  # noqa: PLC0415 - an extra
    from botocore.session import Session  # noqa: PLC0415

    session = Session()
    # For the clients with which botocore asks for credentials; requests to models are not its.
    seconds = TOKEN_SECONDS
    config = Config(
        connect_timeout=seconds, read_timeout=seconds, retries={"total_max_attempts": 2}
    )
    session.set_default_client_config(config)
    return session


def region_of(session: "Session", region: str | None) -> str:
    """Return *region*, or that of the environment or the AWS profile.

    Raises:
        UsageError: There is none.
    """
    found = region or os.environ.get("AWS_REGION") or session.get_config_variable("region")
    if not found:
        msg = "Bedrock needs a region: set AWS_REGION or pass region="
        raise UsageError(msg)
    return str(found)


def endpoint_of(session: "Session", region: str) -> str:
    """Return the URL of Bedrock in *region*, or the one that the environment or profile sets.

    Raises:
        UsageError: *region* is not the name of a region.
    """
    from botocore import UNSIGNED  # noqa: PLC0415 - an extra
    from botocore.config import Config  # noqa: PLC0415
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415

    # Unsigned, because otherwise botocore would look for credentials now.
    config = Config(signature_version=UNSIGNED)
    try:
        client = session.create_client(_SERVICE, region_name=region, config=config)
    except (BotoCoreError, ValueError) as error:
        msg = f"botocore knows no address of Bedrock in {region!r}: {error}"
        raise UsageError(msg) from error
    return str(client.meta.endpoint_url)


def signer(session: "Session", region: str) -> Signer:
    """Return a function that signs requests with the credentials of *session*."""
    from botocore.auth import SigV4Auth  # noqa: PLC0415 - an extra
    from botocore.awsrequest import AWSRequest  # noqa: PLC0415

    credentials = ExpiringCredentials(lambda: _fetch(session))

    async def sign(runtime: Runtime, url: str, body: bytes) -> Headers:
        # No secret is a local variable, which tracebacks may show. `add_auth` would write the token
        # to the log of botocore.
        auth: Any = SigV4Auth(await credentials.current(runtime), _SIGNING_NAME, region)
        timestamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        request = AWSRequest("POST", url, {"x-amz-date": timestamp}, body)
        request.context["timestamp"] = timestamp
        if auth.credentials.token:
            request.headers["x-amz-security-token"] = auth.credentials.token
        to_sign = auth.string_to_sign(request, auth.canonical_request(request))
        authorization = (
            f"AWS4-HMAC-SHA256 Credential={auth.scope(request)}, "
            f"SignedHeaders={auth.signed_headers(auth.headers_to_sign(request))}, Signature="
        )
        return SecretHeaders(
            {
                **dict(request.headers.items()),
                "authorization": authorization + auth.signature(to_sign, request),
            }
        )

    return sign


def _fetch(session: "Session") -> "tuple[ReadOnlyCredentials, float | None]":
    """Return the credentials of *session*, and when to ask for them again.

    Raises:
        AuthenticationError: There are no credentials, or they cannot be renewed.
        ConnectionFailedError: The service that issues them cannot be reached.
    """
    from botocore import exceptions  # noqa: PLC0415 - an extra
    from botocore.credentials import RefreshableCredentials  # noqa: PLC0415

    try:
        credentials = session.get_credentials()
        if credentials is None:
            msg = (
                "there are no AWS credentials; set AWS_ACCESS_KEY_ID, AWS_PROFILE or "
                "AWS_BEARER_TOKEN_BEDROCK, or pass api_key="
            )
            raise AuthenticationError(msg, provider=PROVIDER)
        frozen = credentials.get_frozen_credentials()
    except (exceptions.ConnectionError, exceptions.HTTPClientError) as error:
        what = "the service that issues AWS credentials cannot be reached"
        raise token_service_error(ConnectionFailedError, what, error, PROVIDER) from error
    except (exceptions.BotoCoreError, exceptions.ClientError, RuntimeError) as error:
        what = "the AWS credentials cannot be loaded"
        raise token_service_error(AuthenticationError, what, error, PROVIDER) from error
    renewable = isinstance(credentials, RefreshableCredentials)
    return frozen, time.time() + _CHECK_SECONDS if renewable else None


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
