"""`LangChainChatModel`: a chat model of LangChain as a model of this library.

Messages, tools and options are converted first, without I/O.
"""

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextvars import copy_context
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage as TheirSystemMessage,
    ToolMessage,
)

from chatclient.bridges.content_blocks import block_of, media_of
from chatclient.chat.messages import (
    AssistantMessage,
    Media,
    Message,
    Part,
    ProviderPart,
    Reasoning,
    SystemMessage,
    ToolCall,
    ToolCallChunk,
    ToolResponse,
    ToolResponseMessage,
)
from chatclient.chat.model import ChatModel, OutputMode
from chatclient.chat.options import ChatOptions
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import (
    NO_USAGE,
    ChatResponse,
    ChatResponseMetadata,
    FinishReason,
    Generation,
    Usage,
)
from chatclient.errors import ProviderError, UnsupportedOptionError, UsageError
from chatclient.extend import (
    NO_OPTIONS,
    CommonOptions,
    automatic,
    check_type,
    dumps_exact,
    error_from_data,
    lacking,
    loads,
)
from chatclient.providers.wire.common_options import COMMON_OPTIONS, field
from chatclient.runtime.runtime import Runtime
from chatclient.runtime.threads import private_loop

PROVIDER = "langchain"

_COMMON = ChatOptions.__dataclass_fields__
_TAKEN = ("temperature", "top_p", "max_tokens", "stop", "seed")
_BOUND = ("tool_choice", "parallel_tool_calls")
_REASON = "LangChain has no common name for it: set it on the LangChain model"

_ENCODERS = {
    **dict.fromkeys(COMMON_OPTIONS, lacking(_REASON)),
    **{name: field(name) for name in _TAKEN},
    **dict.fromkeys(_BOUND, automatic),
}

_FINISH_REASONS: Mapping[str, FinishReason] = {
    "stop": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "tool_call",
    "tool_use": "tool_call",
    "function_call": "tool_call",
    "content_filter": "content_filter",
    "safety": "content_filter",
    "refusal": "content_filter",
}


def encode_options(options: ChatOptions, provider: str) -> dict[str, Any]:
    """Return the keyword arguments of a call.

    Raises:
        UnsupportedOptionError: LangChain has no common name for an option.
    """
    hints = {name: f": {_REASON}" for name in options.set_values() if name not in _COMMON}
    hints = {name: hint for name, hint in hints.items() if name not in options.defaults}
    if options.output_schema is not None:
        hints["output_schema"] = "; use native=False"
    for name, hint in hints.items():
        msg = f"{provider}, used through LangChain, does not take {name}{hint}"
        raise UnsupportedOptionError(msg, option=name, provider=provider, model=options.model or "")
    settings = CommonOptions(provider, _ENCODERS).encode(options)
    if "stop" in settings:
        settings["stop"] = list(settings["stop"])
    if options.model is not None:
        settings["model"] = options.model
    return settings


def encode_tools(options: ChatOptions) -> dict[str, Any]:
    """Return the keyword arguments of `bind_tools`."""
    tools = [
        {
            "type": "function",
            "function": {
                "name": callback.definition.name,
                "description": callback.definition.description,
                "parameters": callback.definition.input_schema,
            },
        }
        for callback in options.tool_callbacks or ()
    ]
    bound: dict[str, Any] = {"tools": tools}
    choice = options.tool_choice
    if choice not in (None, "auto"):
        bound["tool_choice"] = "any" if choice == "required" else choice
    if options.parallel_tool_calls is not None:
        bound["parallel_tool_calls"] = options.parallel_tool_calls
    return bound


def encode_message(message: Message) -> Iterator[BaseMessage]:
    """Yield the messages of LangChain for *message*; each tool result is one."""
    match message:
        case ToolResponseMessage():
            yield from map(_tool_message, message.responses)
        case AssistantMessage():
            calls: list[Any] = []
            invalid: list[Any] = []
            for call in message.tool_calls:
                known = {"id": call.id, "name": call.name}
                try:
                    arguments = loads(call.arguments or "{}")
                except ValueError:
                    arguments = None
                if isinstance(arguments, dict):
                    calls.append({"type": "tool_call", "args": arguments, **known})
                else:
                    bad = {"type": "invalid_tool_call", "args": call.arguments, "error": None}
                    invalid.append({**bad, **known})
            content = _content(message.parts)
            yield AIMessage(content, tool_calls=calls, invalid_tool_calls=invalid)
        case SystemMessage():
            yield TheirSystemMessage(message.text)
        case _:
            parts: tuple[Part, ...] = getattr(message, "parts", ())
            yield HumanMessage(_content(parts))


def _tool_message(response: ToolResponse) -> ToolMessage:
    content: Any = response.data
    if response.media:
        content = [{"type": "text", "text": response.data}, *map(block_of, response.media)]
    status = "error" if response.is_error else "success"
    return ToolMessage(content, tool_call_id=response.id, name=response.name, status=status)


def _content(parts: tuple[Part, ...]) -> Any:
    """Return *parts* as a text or as blocks, without tool calls."""
    blocks: list[Any] = []
    for part in parts:
        match part:
            case str():
                blocks.append({"type": "text", "text": part})
            case Media():
                blocks.append(block_of(part))
            case Reasoning(provider=provider, data=data) if provider == PROVIDER and data:
                blocks.append(dict(data))
            case ProviderPart(provider=provider, data=data):
                own = provider == PROVIDER
                blocks.extend([dict(data)] if own else [{"type": "text", "text": part.text}])
            case _:
                pass  # calls are outside of the content; other providers signed the reasoning
    if all(block["type"] == "text" for block in blocks):
        return "".join(block["text"] for block in blocks)
    return [block for block in blocks if block.get("text") != ""]


def decode_message(message: AIMessage) -> ChatResponse:
    """Return an answer, or a chunk of one, as a response."""
    native = message.response_metadata
    reason = native.get("finish_reason") or native.get("stop_reason")
    parts = [*_parts(message.content), *_calls(message)]
    finish = None if reason is None else _FINISH_REASONS.get(str(reason).lower(), "stop")
    if finish is None and not isinstance(message, AIMessageChunk):
        finish = "tool_call" if message.tool_calls else "stop"
    generation = Generation(AssistantMessage(parts), finish, reason)
    metadata = ChatResponseMetadata(
        id=message.id or "",
        model=str(native.get("model_name") or native.get("model") or ""),
        usage=_usage(message.usage_metadata),
    )
    return ChatResponse((generation,), metadata)


def _parts(content: Any) -> Iterator[Part]:
    for block in [content] if isinstance(content, str) else content:
        if isinstance(block, str):
            yield from [block] if block else []
            continue
        kind = block.get("type")
        if kind == "text" and set(block) <= {"type", "text", "index", "id"}:
            yield from [block["text"]] if block.get("text") else []
        elif kind in ("reasoning", "thinking"):
            text = str(block.get(kind) or "")
            yield Reasoning(text, block.get("signature"), PROVIDER, block)
        elif (media := media_of(block)) is not None:
            yield media
        elif kind not in ("tool_use", "tool_call", "tool_call_chunk", "input_json_delta"):
            yield ProviderPart(PROVIDER, block, str(block.get("text") or ""))


def _calls(message: AIMessage) -> Iterator[Part]:
    if isinstance(message, AIMessageChunk):
        for chunk in message.tool_call_chunks:
            arguments = chunk["args"] or ""
            yield ToolCallChunk(chunk["index"], chunk["id"] or "", chunk["name"] or "", arguments)
        return
    for call in message.tool_calls:
        yield ToolCall(call["id"] or "", call["name"], dumps_exact(call["args"]))
    for bad in message.invalid_tool_calls:
        yield ToolCall(bad["id"] or "", bad["name"] or "", bad["args"] or "")


def _usage(given: Any) -> Usage:
    if not given:
        return Usage()
    inputs, outputs = (
        given.get("input_token_details") or {},
        given.get("output_token_details") or {},
    )
    return Usage(
        input_tokens=given["input_tokens"],
        output_tokens=given["output_tokens"],
        cache_read_tokens=inputs.get("cache_read"),
        cache_write_tokens=inputs.get("cache_creation"),
        reasoning_tokens=outputs.get("reasoning"),
    )


class LangChainChatModel(ChatModel):
    """A chat model of LangChain, of any of its integrations.

    Tool calls, media, reasoning, streams and usage are converted; the advisors and the tool loop
    are those of this library. The model runs on an event loop of this library, in a thread of its
    own, so that its connections can be used in all four modes and by several event loops.

    Args:
        model: The model, such as a `ChatOpenAI`; the application configures it.
        options: Default options.

    Raises:
        WrongTypeError: *model* is not a chat model of LangChain.
    """

    def __init__(self, model: BaseChatModel, *, options: ChatOptions = NO_OPTIONS) -> None:
        hint = "such as ChatOpenAI(...) of langchain-openai"
        check_type("a chat model of LangChain", model, BaseChatModel, hint)
        self._model = model
        self._options = options

    @property
    def options(self) -> ChatOptions:
        """The default options."""
        return self._options

    @property
    def name(self) -> str:
        """The name of the model, as far as LangChain knows it."""
        own: Any = getattr(self._model, "model_name", None) or getattr(self._model, "model", None)
        return self._options.model or (own if isinstance(own, str) else type(self._model).__name__)

    @property
    def provider(self) -> str:
        """The provider's name, such as `openai`."""
        found = self._model._get_ls_params().get("ls_provider")  # noqa: SLF001 - as its tracer does
        return found or PROVIDER

    def output_mode(self, options: ChatOptions) -> OutputMode:  # noqa: ARG002 - the same for all
        """Return `tool`, or `instructions` for a model without tools."""
        bind_tools = type(self._model).bind_tools
        return "instructions" if bind_tools is BaseChatModel.bind_tools else "tool"

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        """Return the model's response to *prompt*."""
        model, messages, settings = self._request(prompt)

        async def ask(_runtime: Runtime) -> Any:
            return await model.ainvoke(messages, **settings)

        try:
            message: AIMessage = await runtime.run_on(private_loop(copy_context()), ask)
        except Exception as error:
            raise self._error_of(error) from error
        return decode_message(message)

    async def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Yield the chunks of the model's response to *prompt*."""
        model, messages, settings = self._request(prompt)
        chunks: AsyncGenerator[AIMessageChunk, None] = model.astream(messages, **settings)
        thread, usage = private_loop(copy_context()), NO_USAGE

        async def following(_runtime: Runtime) -> AIMessageChunk | None:
            return await anext(chunks, None)

        async def close(_runtime: Runtime) -> None:
            await chunks.aclose()

        try:
            while (chunk := await runtime.run_on(thread, following)) is not None:
                response = decode_message(chunk)
                usage += response.usage  # LangChain sends differences, and not totals
                yield response.with_usage(usage)
        except Exception as error:
            raise self._error_of(error) from error
        finally:
            # Shielded: the generator of a cancelled request has to be closed on its loop, too.
            await runtime.shielded(runtime.run_on(thread, close))

    def _request(self, prompt: Prompt) -> tuple[Any, list[Any], dict[str, Any]]:
        """Return the model with its tools, the messages, and the arguments of the call."""
        options = prompt.options
        settings = encode_options(options, self.provider)
        messages = [each for message in prompt.messages for each in encode_message(message)]
        if not options.tool_callbacks or options.tool_choice == "none":
            return self._model, messages, settings
        try:
            bound = self._model.bind_tools(**encode_tools(options))
        except NotImplementedError as error:
            msg = f"{type(self._model).__name__} takes no tools: it has no bind_tools()"
            raise UsageError(msg) from error
        return bound, messages, settings

    def _error_of(self, error: Exception) -> Exception:
        """Return *error* of an integration as an error of this library."""
        status: object = getattr(error, "status_code", None)
        if isinstance(error, ProviderError | TimeoutError) or not isinstance(status, int):
            return error
        return error_from_data(self.provider, status, {"error": {"message": str(error)}})
