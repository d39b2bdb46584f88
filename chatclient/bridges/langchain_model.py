"""`LangChainChatModel`: a chat model of LangChain as a model of this library."""

from collections.abc import AsyncGenerator
from contextvars import copy_context
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk

from chatclient.bridges.langchain_messages import (
    PROVIDER,
    decode_message,
    encode_message,
    encode_options,
    encode_tools,
)
from chatclient.chat.model import ChatModel, OutputMode
from chatclient.chat.options import ChatOptions
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import NO_USAGE, ChatResponse
from chatclient.errors import ProviderError, UsageError
from chatclient.extend import NO_OPTIONS, check_type, error_from_data
from chatclient.runtime.runtime import Runtime
from chatclient.runtime.threads import private_loop


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
