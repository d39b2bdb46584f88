"""Models that delegate to other models: fallback and routing."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack, ExitStack, aclosing
from dataclasses import replace
from typing import Literal

from chatclient._internal.checks import check_callable, check_choice, check_type, error_kinds
from chatclient._internal.exceptions import single_error
from chatclient._internal.frozen import merged
from chatclient._internal.logging import described, get_logger
from chatclient.chat.model import ChatModel, OutputMode
from chatclient.chat.options import ChatOptions, options_for
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import NO_METADATA, ChatResponse, ChatResponseMetadata
from chatclient.chat.server_tools import ServerTool
from chatclient.errors import (
    DeadlineExceededError,
    ProviderError,
    ToolCallRefusedError,
    UnsupportedOptionError,
    UsageError,
)
from chatclient.observability.operations import Fallback, note_answering_model
from chatclient.providers.http.reader import read_until_content
from chatclient.runtime.runtime import Runtime, is_expired
from chatclient.runtime.threads import ForkSafeLock

_WEAKEST_FIRST: tuple[OutputMode, ...] = ("instructions", "tool", "schema")


class _CompositeModel(ChatModel):
    """A model that delegates to *models*; the names are joined by *separator*."""

    def __init__(self, models: tuple[ChatModel, ...], separator: str) -> None:
        for model in models:
            check_type("a model to choose from", model, ChatModel, _hint(model))
        if not models:
            msg = "there is nothing to choose from: give at least one model"
            raise UsageError(msg)
        self._models = models
        self._separator = separator

    @property
    def models(self) -> tuple[ChatModel, ...]:
        """The models, in the given order."""
        return self._models

    @property
    def name(self) -> str:
        """The names of all models."""
        return self._separator.join(model.name for model in self.models)

    @property
    def address(self) -> str:
        """The addresses of all models."""
        return self._separator.join(model.address for model in self.models)

    def output_mode(self, options: ChatOptions) -> OutputMode:
        """Return the way to request a schema that all models support."""
        modes = {model.output_mode(_options_of(model, options)) for model in self.models}
        return next(mode for mode in _WEAKEST_FIRST if mode in modes)

    def offers_logprobs(self, options: ChatOptions) -> bool:
        """Return whether all models report log probabilities."""
        return all(model.offers_logprobs(_options_of(model, options)) for model in self.models)

    def can_withhold_tools(self, options: ChatOptions) -> bool:
        """Return whether the providers of all models can restrict calls to some of the tools."""
        return all(model.can_withhold_tools(_options_of(model, options)) for model in self.models)

    def has_server_tool(self, tool: ServerTool, options: ChatOptions) -> bool:
        """Return whether the providers of all models run *tool*."""
        return all(
            model.has_server_tool(tool, _options_of(model, options)) for model in self.models
        )

    def _check_options(self, prompt: Prompt) -> None:
        """Check that each option that the request sets is one of a model.

        Raises:
            UnsupportedOptionError: No model has one of them.
        """
        if type(prompt.options) is ChatOptions:
            return
        for at, model in enumerate(self.models, 1):
            try:
                model.options.merge(prompt.options)
            except UnsupportedOptionError:
                if at == len(self.models):
                    raise
            else:
                return

    def close(self) -> None:
        """Close all models."""
        with ExitStack() as stack:
            for model in reversed(self.models):  # the stack reverses the order again
                stack.callback(model.close)

    async def aclose(self) -> None:
        """Close all models."""
        async with AsyncExitStack() as stack:
            for model in reversed(self.models):
                stack.push_async_callback(model.aclose)


def _hint(model: object) -> str:
    if isinstance(model, str):
        return f"a name stands for a model in ChatClient.create({model!r}).model"
    return "pass models one by one; that of a client is at client.model"


def _options_of(model: ChatModel, options: ChatOptions) -> ChatOptions:
    """Return *options* with the defaults of *model*, without those of other providers' models."""
    return model.options.merge(options_for(type(model.options), options))


def prompt_for(model: ChatModel, prompt: Prompt) -> Prompt:
    """Return *prompt* with the default options of *model*, recorded as the answering model."""
    complete = prompt.with_options(_options_of(model, prompt.options))
    note_answering_model(model, complete)
    return complete


log = get_logger(__name__)

_FAILURES = (ProviderError, DeadlineExceededError, UnsupportedOptionError)

Fails = type[Exception] | Collection[type[Exception]] | Callable[[Exception], bool]
"""Errors after which to try the next model: one or several types, or a predicate."""


class FallbackChatModel(_CompositeModel):
    """Tries several models in order until one answers.

    The prompt's options are merged with each model's defaults, including its name; a model gets
    only those that its provider has. A model that has failed is tried last for the rest of the
    turn. After the first content of a stream, errors are raised, because content cannot be revoked.
    Chunks before the first content are held until then.

    Args:
        *models: The models, in the order in which they are tried.
        on: Errors after which to try the next model. A `DeadlineExceededError` is the `total`
            time-out of one model; after the deadline of the request, no other model is tried.

    Raises:
        UsageError: *models* is empty or contains something else than chat models, or *on* is
            neither error types nor a function.
    """

    def __init__(self, *models: ChatModel, on: Fails = _FAILURES) -> None:
        super().__init__(models, " → ")
        self._fails: Callable[[Exception], bool]
        if isinstance(on, type) or not callable(on):
            types = error_kinds("on", on)
            self._fails = lambda error: isinstance(error, types)
        else:
            check_callable("on", on, takes=("error",))
            self._fails = on

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        """Return the response of the first model that succeeds."""
        self._check_options(prompt)
        *others, last = self._in_order(runtime)
        for model in others:
            try:
                return await model.generate(prompt_for(model, prompt), runtime)
            except Exception as error:  # noqa: BLE001 - `on` decides
                self._record_or_raise(model, single_error(error), runtime)
        return await last.generate(prompt_for(last, prompt), runtime)

    async def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Yield the response of the first model that sends content."""
        self._check_options(prompt)
        *others, last = self._in_order(runtime)
        for model in (*others, last):
            started = False
            try:
                stream = model.generate_stream(prompt_for(model, prompt), runtime)
                async with aclosing(stream) as chunks:
                    for chunk in await read_until_content(chunks):
                        started = True
                        yield chunk
                    async for chunk in chunks:
                        yield chunk
            except Exception as error:
                if started or model is last:
                    raise
                self._record_or_raise(model, single_error(error), runtime)
            else:
                return

    def _in_order(self, runtime: Runtime) -> list[ChatModel]:
        """Return the models, with those that have failed in this turn at the end."""
        failed: list[int] = (runtime.state or {}).get(self.name, [])
        at = range(len(self.models))
        return [self.models[each] for each in sorted(at, key=lambda each: each in failed)]

    def _record_or_raise(self, model: ChatModel, error: Exception, runtime: Runtime) -> None:
        """Record that *model* failed; raise *error* unless the next model may be tried."""
        # A rejected tool call is handled by the tool loop, which reports it to the model.
        is_final = isinstance(error, ToolCallRefusedError) or is_expired(runtime)
        if is_final or not self._fails(error):
            raise error
        log.info("fallback", model=model.name, error=described(error))
        if runtime.state is not None:
            failed = runtime.state.get(self.name, [])
            at = next(at for at, each in enumerate(self.models) if each is model)
            runtime.state[self.name] = [*failed, at]
        with runtime.observe(Fallback(self, model, type(error).__name__)):
            pass  # recorded as an operation without duration


Choose = Callable[[Prompt], ChatModel | Awaitable[ChatModel | None] | None]
"""Returns the model for a prompt, or None for the default route; plain or asynchronous."""

Keep = Literal["turn", "conversation", "call"]

ROUTE = "route"
"""Key in a response's `metadata.values`: the name of the model that a `RoutingChatModel` chose."""

_MAX_CONVERSATIONS = 10_000


class RoutingChatModel(_CompositeModel):
    """Sends each turn to the model that a function chooses.

    The prompt's options are merged with the model's defaults, including its name. The function can
    use the prompt's messages and options, including the application's data in
    `prompt.options.tool_context`. The name of the chosen model is in the response's metadata.

    Args:
        choose: Returns one of *models* for a prompt, or None for the default route; plain or
            asynchronous.
        *models: The models, which are closed with this one. The first one is the default route.
        keep: How long a choice is kept: for the rounds of a tool loop and the retries of a turn,
            for all turns of a conversation (in this process), or for one call only.

    Raises:
        UsageError: *models* is empty, or *keep* is unknown; or, during a call, *choose* returned
            another model.
    """

    def __init__(self, choose: Choose, *models: ChatModel, keep: Keep = "turn") -> None:
        check_callable("choose", choose, takes=("prompt",))
        check_choice("keep", keep, Keep)
        self._choose = choose
        self._keep = keep
        self._lock = ForkSafeLock()
        self._conversations: dict[str, ChatModel] = {}  # the oldest first
        super().__init__(models, " | ")

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        """Return the response of the chosen model."""
        model = await self._route(prompt, runtime)
        response = await model.generate(prompt_for(model, prompt), runtime)
        return replace(response, metadata=_with_route(response.metadata, model))

    async def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Yield the response of the chosen model."""
        model = await self._route(prompt, runtime)
        async with aclosing(model.generate_stream(prompt_for(model, prompt), runtime)) as chunks:
            async for chunk in chunks:
                yield chunk
        yield ChatResponse((), _with_route(NO_METADATA, model))

    async def _route(self, prompt: Prompt, runtime: Runtime) -> ChatModel:
        """Return the model for *prompt*, as chosen before if that choice is kept."""
        self._check_options(prompt)
        state, conversation = runtime.state, runtime.conversation_id
        kept: ChatModel | None = None
        if self._keep != "call" and state is not None and self.name in state:
            kept = self.models[state[self.name]]
        if kept is None and self._keep == "conversation" and conversation is not None:
            kept = self._conversations.get(conversation)
        if kept is not None:
            return kept
        chosen = await self._chosen(prompt, runtime)
        model = self.models[chosen]
        if state is not None:
            state[self.name] = chosen
        if self._keep == "conversation" and conversation is not None:
            with self._lock:
                self._conversations[conversation] = model
                if len(self._conversations) > _MAX_CONVERSATIONS:
                    del self._conversations[next(iter(self._conversations))]
        return model

    async def _chosen(self, prompt: Prompt, runtime: Runtime) -> int:
        """Return the index of the model that the application chooses."""
        model: object = await runtime.invoke(self._choose, prompt)
        if model is None:
            return 0
        for at, each in enumerate(self.models):
            if each is model:
                return at
        msg = f"{model!r} was chosen, which is none of the models to choose from: {self.name}"
        raise UsageError(msg)


def _with_route(metadata: ChatResponseMetadata, model: ChatModel) -> ChatResponseMetadata:
    return replace(metadata, values=merged(metadata.values, {ROUTE: model.name}))
