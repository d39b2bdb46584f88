"""The fluent client: `ChatClient`, its builder and its requests."""

from collections.abc import Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, Unpack

from chatclient.advisors.resumed import Resumed
from chatclient.advisors.tool_calling import RESUME, TURN_IDENTITY
from chatclient.agent_tool import AgentTurn, ClientTool, ConversationOf, conversation_below
from chatclient.answers import AsyncCallResponse, CallResponse
from chatclient.chain import Advisor, ChatClientResponse, needs_conversation
from chatclient.chain_text import describe_chain, draw_chain
from chatclient.checks import check_callable, check_kind, check_method, check_word, missing
from chatclient.closing import Closeable
from chatclient.engine import Engine
from chatclient.errors import UsageError
from chatclient.instructions import SystemFunction
from chatclient.messages import Media, Message
from chatclient.model import ChatModel
from chatclient.observation import Observer
from chatclient.options import ChatOptions, OptionValues
from chatclient.pipeline import Pipeline
from chatclient.prompt import Prompt
from chatclient.providers.registry import chat_model
from chatclient.request_options import with_options, with_request_options
from chatclient.runtime import BLOCKING, ON_LOOP, Runtime
from chatclient.spec import RequestSpec, TextSpec, refuse_no_text, with_more
from chatclient.streams import AsyncStreamResponse, StreamResponse
from chatclient.structured import StructuredOutput
from chatclient.template import TemplateRenderer
from chatclient.tool import CONVERSATION_ID, USER_ID, ToolCallback, ToolContext, ToolMetadata
from chatclient.tools import PendingTurn, ToolCallbackResolver, ToolCallingManager
from chatclient.tools.approval import Decisions, decisions_for
from chatclient.tools.duplicates import DuplicatePolicy
from chatclient.tools.manager import check_manager
from chatclient.tools.sources import ToolSource

if TYPE_CHECKING:  # loaded by who uses settings, and tool search
    from chatclient.settings import ChatClientSettings
    from chatclient.tools.search import ToolIndex


# What asking is called elsewhere.
_ASKING = frozenset({"ainvoke", "ask", "chat", "generate", "invoke", "run", "run_sync"})
_REMEMBERING = "it is in an advisor: .default_advisors(MessageChatMemoryAdvisor(memory))"


class ChatClient(Closeable):
    """A model, with everything that its requests have in common.

    Immutable, and safe to share between threads, tasks and event loops. Build one with
    `ChatClient.builder(model)`, or with `ChatClient.create(model)` if there is nothing to set.
    """

    def __init__(self, engine: Engine, defaults: RequestSpec | None = None) -> None:
        given: object = engine
        if not isinstance(given, Engine) or defaults is None:
            msg = "a client is made by ChatClient.create(model), or by ChatClient.builder(model)"
            raise UsageError(msg)
        self._engine = engine
        self._defaults = defaults
        self._pipeline = Pipeline(engine, defaults)

    @classmethod
    def create(cls, model: ChatModel | str) -> "ChatClient":
        """Return a client of *model* with nothing else set; see `builder`."""
        return cls.builder(model).build()

    @classmethod
    def builder(cls, model: ChatModel | str) -> "ChatClientBuilder":
        """Return a builder of clients of *model*.

        Args:
            model: A chat model, or its name: `"openai:gpt-5-mini"`, `"local"`.

        Raises:
            UsageError: The name names no provider, or it is not a model.
        """
        return ChatClientBuilder(Engine(_model(model), ToolCallingManager()), RequestSpec())

    @classmethod
    def from_settings(
        cls,
        settings: "ChatClientSettings | None" = None,
        *,
        model: ChatModel | None = None,
        resolver: ToolCallbackResolver | None = None,
        tool_index: "ToolIndex | None" = None,
    ) -> "ChatClient":
        """Return a client configured by settings; use `mutate()` to add what is in no setting.

        Args:
            settings: The settings; default: those of the process, from its environment and files.
            model: The model, in place of the one that the settings name.
            resolver: Knows tools by name.
            tool_index: Finds tools, in place of the one that the settings name.

        Raises:
            UsageError: A setting is invalid, or something that it needs is missing.
        """
        # An extra, which nobody else has to load.
        from chatclient.configuration import client_parts  # noqa: PLC0415

        return ChatClient(*client_parts(settings, model, resolver, tool_index))

    @property
    def model(self) -> ChatModel:
        """The model behind this client."""
        return self._engine.model

    def prompt(
        self, prompt: str | Message | Iterable[Message] | Prompt | None = None
    ) -> "ChatClientRequestSpec":
        """Begin a request.

        Args:
            prompt: The user's text; or messages; or a `Prompt`, whose options win over the
                client's; or nothing, for a request that is built step by step.

        Raises:
            UsageError: The text is blank, or not a string.
            TypeError: One of them is not a message.
        """
        request = ChatClientRequestSpec(self, self._defaults)
        if prompt is None:
            return request
        if isinstance(prompt, Prompt):
            return request.messages(prompt.messages).options(prompt.options)
        if isinstance(prompt, str):
            return request.user(prompt)
        refuse_no_text(prompt, Message, Iterable)
        return request.messages(prompt)

    def resume(self, turn: PendingTurn | str, decisions: Decisions) -> "ChatClientRequestSpec":
        """Go on with a turn that waited for approvals, in this process or another one.

        Args:
            turn: The `pending_turn()` of the answer that was suspended, or its JSON.
            decisions: A mapping from the id of each tool call to a bool or a `Decision`; or
                `"approve"` or `"deny"` for all of them. `PendingTurn.to_decide` has the ids.

        Returns:
            A request to be called like any other. Give it again what the first request had in
            addition to the client's defaults, such as tools. Its messages are those of the turn.

        Raises:
            UsageError: A call is left undecided, or *turn* is not a pending turn.
        """
        if isinstance(turn, str):
            turn = PendingTurn.from_json(turn)
        params: dict[str, Any] = {RESUME: Resumed(turn, decisions_for(turn, decisions))}
        if turn.conversation_id is not None:
            params[CONVERSATION_ID] = turn.conversation_id
        # The turn's messages hold the system and user texts already, rendered.
        spec = replace(
            self._defaults,
            system=TextSpec(),
            written_system=None,
            user=TextSpec(),
            messages=turn.messages,
        )
        return ChatClientRequestSpec(self, spec).advisor_params(params)

    def as_tool(
        self,
        name: str,
        description: str,
        *,
        metadata: ToolMetadata | None = None,
        conversation: str | ConversationOf | None = None,
        input_type: Any = None,
    ) -> ToolCallback:
        """Return this client as a tool for another one: an agent that a model can ask.

        Each call is a request of its own, within the deadline of the one it is made in. What the
        agent does appears in the stream as `ToolProgress`, and in the trail of its caller.

        Args:
            name: What the model calls it.
            description: What it can be asked for.
            metadata: How the tool is run.
            conversation: The conversation that an agent with a memory continues: an id,
                or a function of the `ToolContext`, plain or asynchronous, that returns it. Default:
                one of its own for each conversation of its caller, `{id}/{name}`.
            input_type: The type of the input, such as a pydantic model; the agent reads it as
                JSON. Default: a text, `request`.

        Raises:
            ToolDefinitionError: Providers do not accept the name, the type has no schema, or its
                compensation wants what no call has.
        """
        if conversation is None and self._remembers():
            conversation = conversation_below(name)
        return ClientTool(
            self._ask_as_agent,
            name,
            description,
            metadata=metadata,
            conversation=conversation,
            input_type=input_type,
        )

    async def _ask_as_agent(
        self,
        asked: str | AgentTurn,
        conversation: str | None,
        context: ToolContext,
        runtime: Runtime,
    ) -> ChatClientResponse:
        request = self.prompt(asked) if isinstance(asked, str) else self.resume(*asked)
        if conversation is not None:
            request = request.conversation(conversation)
        if USER_ID in context and USER_ID not in self._defaults.advisor_params:
            request = request.advisor_params({USER_ID: context[USER_ID]})
        # If the call is made again by a repeated turn, so is the agent's turn.
        request = request.advisor_params({TURN_IDENTITY: context.idempotency_key})
        return await request.tool_context(context)._run(runtime)

    def _remembers(self) -> bool:
        """Return whether requests need a conversation that nobody has named yet."""
        defaults = self._defaults
        named = CONVERSATION_ID in defaults.advisor_params
        return not named and any(map(needs_conversation, defaults.advisors))

    def mutate(self) -> "ChatClientBuilder":
        """Return a builder that starts from everything this client has."""
        return ChatClientBuilder(self._engine, self._defaults)

    def close(self) -> None:
        """Close the model's connections, and those of a memory that settings asked for."""
        with ExitStack() as stack:
            for each in (*self._engine.owned, self._engine.model):
                stack.callback(each.close)

    async def aclose(self) -> None:
        """Close what `close` closes, and the connections of this event loop."""
        async with AsyncExitStack() as stack:
            for each in (*self._engine.owned, self._engine.model):
                stack.push_async_callback(each.aclose)

    if not TYPE_CHECKING:  # see the builder's

        def __getattr__(self, name: str) -> Any:
            hint = ""
            if name in ("build", "clone"):
                hint = "; it is built and never changes: use it as it is, or client.mutate() it"
            elif hasattr(ChatClientBuilder, name):
                hint = f"; a changed client is client.mutate().{name}(...).build()"
            elif hasattr(ChatClientRequestSpec, name):
                hint = f"; a request has: client.prompt(...).{name}(...)"
            elif name in _ASKING or hasattr(CallResponse, name):
                accessor = "content" if name in _ASKING else name
                hint = f"; ask it: client.prompt(...).call().{accessor}()"
            raise missing(self, name, hint)

    def __repr__(self) -> str:
        return f"ChatClient({self._engine.model.name})"

    def __str__(self) -> str:
        return describe_chain(self._pipeline.chain, rounds=self._pipeline.runs_tools)

    def diagram(self) -> str:
        """Return the effective chain as a Mermaid flowchart, for documentation."""
        return draw_chain(self._pipeline.chain, rounds=self._pipeline.runs_tools)


class ChatClientBuilder:
    """Collects the settings of a client; immutable, so each method returns a new builder."""

    def __init__(self, engine: Engine, spec: RequestSpec) -> None:
        self._engine = engine
        self._spec = spec

    def default_system(
        self,
        text: str | SystemFunction | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Self:
        """Set the system text of every request; see `ChatClientRequestSpec.system`."""
        return self._with(self._spec.with_system(text, params, metadata))

    def default_user(
        self,
        text: str | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        media: Media | Iterable[Media] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> Self:
        """Set the user text of requests that have none of their own."""
        return self._with(self._spec.with_user(text, params, media, metadata))

    def default_messages(self, *messages: Message | Iterable[Message]) -> Self:
        """Add messages that every conversation begins with."""
        return self._with(self._spec.with_messages(messages))

    def default_options(
        self, options: ChatOptions | None = None, /, **values: Unpack[OptionValues]
    ) -> Self:
        """Set options of every request; see `ChatClientRequestSpec.options`."""
        return self._with(with_options(self._engine, self._spec, options, values))

    def default_deadline(self, seconds: float | timedelta) -> Self:
        """Give every request at most *seconds*; see `ChatClientRequestSpec.deadline`.

        Raises:
            UsageError: That is not a number, nor a `timedelta`, or not greater than 0.
        """
        return self._with(self._spec.with_deadline(seconds))

    def default_tools(self, *sources: ToolSource) -> Self:
        """Add tools that every request offers unless it brings its own.

        Raises:
            ToolDefinitionError: A source holds no tool, or a tool cannot be built.
        """
        return self._with(self._spec.with_default_tools(sources))

    def default_tool_context(
        self, context: Mapping[str, Any] | None = None, /, **more: Any
    ) -> Self:
        """Add values for the tools of every request, which the model does not see."""
        return self._with(self._spec.with_tool_context(with_more("a tool context", context, more)))

    def default_advisors(
        self,
        *advisors: Advisor | Iterable[Advisor],
        params: Mapping[str, Any] | None = None,
    ) -> Self:
        """Add advisors that every request passes."""
        return self._with(self._spec.with_advisors(advisors, params))

    def default_advisor_params(
        self, params: Mapping[str, Any] | None = None, /, **more: Any
    ) -> Self:
        """Add what advisors find in the context of every request."""
        return self._with(self._spec.with_advisors((), with_more("params", params, more)))

    def default_template_renderer(self, renderer: TemplateRenderer) -> Self:
        """Set what fills the placeholders of system and user texts."""
        check_callable("a template renderer", renderer, takes=("template", "values"))
        return self._with(replace(self._spec, renderer=renderer))

    def model(self, model: ChatModel | str) -> Self:
        """Set another model, also of another provider; see `ChatClientRequestSpec.model`.

        Args:
            model: A chat model, or its name; see `ChatClient.builder`.

        Raises:
            UsageError: The name names no provider, or it is not a model.
        """
        engine = replace(self._engine, model=_model(model))
        return type(self)(engine, self._spec.without_model_name())

    def tool_calling(self, enabled: bool) -> Self:  # noqa: FBT001 - reads as a fact
        """Say whether requests run tools; if not, tool calls come back unexecuted.

        Raises:
            WrongTypeError: *enabled* is not a bool.
        """
        return self._with(self._spec.with_tool_calling(enabled))

    def tool_calling_manager(self, manager: ToolCallingManager) -> Self:
        """Set what runs the tools of every request.

        Raises:
            UsageError: It is not a `ToolCallingManager`, or it overrides a method that requests do
                not call.
        """
        check_manager(manager)
        return type(self)(replace(self._engine, manager=manager), self._spec)

    def tool_callback_resolver(self, resolver: ToolCallbackResolver) -> Self:
        """Set what knows tools by name."""
        hint = "put tools into a StaticToolCallbackResolver(...)"
        check_method("a resolver of tools", resolver, "resolve", hint)
        return type(self)(replace(self._engine, resolver=resolver), self._spec)

    def observers(self, *observers: Observer | Iterable[Observer]) -> Self:
        """Add observers of every request's operations, such as your own `Telemetry`.

        Raises:
            WrongTypeError: One of them observes nothing.
        """
        flat: list[Any] = []
        for each in observers:
            flat.extend(each if isinstance(each, Iterable) else (each,))
        for each in flat:
            check_method("an observer", each, "begin")
        engine = replace(self._engine, observers=(*self._engine.observers, *flat))
        return type(self)(engine, self._spec)

    def duplicate_tools(self, policy: DuplicatePolicy) -> Self:
        """Say what to do with several tools of one name: refuse them, or keep one.

        Raises:
            UsageError: *policy* is not a known value.
        """
        check_word("duplicate_tools", policy, DuplicatePolicy)
        return type(self)(replace(self._engine, duplicate_tools=policy), self._spec)

    def clone(self) -> Self:
        """Return a builder with the same settings."""
        return type(self)(self._engine, self._spec)

    def build(self) -> ChatClient:
        """Return the client; nothing is connected yet.

        Raises:
            UsageError: Two advisors want to run the tool loop.
            DuplicateToolError: Two default tools have the same name.
        """
        return ChatClient(self._engine, self._spec)

    def _with(self, spec: RequestSpec) -> Self:
        return type(self)(self._engine, spec)

    def __repr__(self) -> str:
        return f"ChatClientBuilder({self._engine.model.name})"

    if not TYPE_CHECKING:  # type checkers would take any name for one of a builder's

        def __getattr__(self, name: str) -> Any:
            hint = ""
            if hasattr(ChatClient, name):
                hint = "; call .build() first"
            elif hasattr(type(self), f"default_{name}"):
                hint = f"; here it is .default_{name}(...), for all requests"
            elif hasattr(ChatClientRequestSpec, name):
                hint = f"; a request has: client.prompt(...).{name}(...)"
            elif name.endswith("memory"):
                hint = f"; {_REMEMBERING}"
            elif name in OptionValues.__annotations__:
                hint = f"; it is an option: .default_options({name}=...)"
            raise missing(self, name, hint)


class ChatClientRequestSpec:
    """A request in the making; immutable, so each method returns a new one."""

    __slots__ = ("_client", "_spec")

    def __init__(self, client: ChatClient, spec: RequestSpec) -> None:
        self._client = client
        self._spec = spec

    def system(
        self,
        text: str | SystemFunction | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Self:
        """Set the system text: what the model should do, and how.

        Args:
            text: Goes first in the conversation, in place of the default text. A template when
                params are given, otherwise sent as it is. Or a function, plain or asynchronous,
                that is called each time the request is sent; it may take a `SystemRequest`.
            params: Values for the template's placeholders, added to those already set.
            metadata: For the application, not sent.

        Raises:
            UsageError: The text is blank, or not a string.
        """
        return self._with(self._spec.with_system(text, params, metadata))

    def user(
        self,
        text: str | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        media: Media | Iterable[Media] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> Self:
        """Set the user's text and media.

        Args:
            text: Goes last in the conversation, in place of the text set before. A template when
                params are given, otherwise sent as it is.
            params: Values for the template's placeholders, added to those already set.
            media: Images and other content, added to those already set.
            metadata: For the application, not sent.

        Raises:
            UsageError: The text is blank, or not a string.
        """
        return self._with(self._spec.with_user(text, params, media, metadata))

    def messages(self, *messages: Message | Iterable[Message]) -> Self:
        """Add messages between the system text and the user text."""
        return self._with(self._spec.with_messages(messages))

    def options(
        self, options: ChatOptions | None = None, /, **values: Unpack[OptionValues]
    ) -> Self:
        """Set options, in addition to those set before; tools among them replace the defaults.

        Args:
            options: Options of the model's provider, or common ones.
            **values: Single options by name, such as `temperature=0.2`. Options that only one
                provider has work, too, but type checkers know them in its own class only.

        Raises:
            UsageError: The model's provider has no such option, or *options* is not a ChatOptions.
        """
        engine = self._client._engine
        return self._with(with_request_options(engine, self._spec, options, values))

    def model(self, model: ChatModel) -> Self:
        """Use another model for this request, also of another provider.

        Its default options replace those of the client's model. Options set before stay as far as
        its provider knows them, except for a model's name.

        Args:
            model: A chat model that the application has made, and closes.

        Raises:
            UsageError: It is not a model. (To name another model of the same provider, use
                `.options(model="...")`.)
        """
        given: object = model
        if not isinstance(given, ChatModel):
            msg = (
                f"{given!r} is not a chat model; make one once, for all requests, or choose another"
                ' model of the same provider by its name: .options(model="...")'
            )
            raise UsageError(msg)
        client = self._client.mutate().model(model).build()
        return type(self)(client, self._spec.without_model_name())

    def tools(self, *sources: ToolSource, keep_defaults: bool = False) -> Self:
        """Offer tools in this request, in place of the client's default tools.

        Args:
            *sources: Functions, objects with `@tool` methods, tool callbacks, providers of them,
                names that the client's resolver knows, and collections of these.
            keep_defaults: Offer the default tools as well.

        Raises:
            ToolDefinitionError: A source holds no tool, or a tool cannot be built.
        """
        return self._with(self._spec.with_tools(sources, keep_defaults=keep_defaults))

    def tool_context(self, context: Mapping[str, Any] | None = None, /, **more: Any) -> Self:
        """Add values for the tools, which the model does not see."""
        return self._with(self._spec.with_tool_context(with_more("a tool context", context, more)))

    def advisors(
        self,
        *advisors: Advisor | Iterable[Advisor],
        params: Mapping[str, Any] | None = None,
    ) -> Self:
        """Add advisors to the client's own, and params for all of them."""
        return self._with(self._spec.with_advisors(advisors, params))

    def advisor_params(self, params: Mapping[str, Any] | None = None, /, **more: Any) -> Self:
        """Add what advisors find in the request's context."""
        return self._with(self._spec.with_advisors((), with_more("params", params, more)))

    def conversation(self, conversation_id: str) -> Self:
        """Say which conversation this request continues; memory advisors and tools read it.

        Raises:
            UsageError: The id is blank, or no text.
        """
        given: object = conversation_id
        if not isinstance(given, str) or not given.strip():
            msg = f"a conversation id must be a text that is not blank, not {given!r}"
            raise UsageError(msg)
        return self.advisor_params({CONVERSATION_ID: conversation_id})

    def deadline(self, seconds: float | timedelta) -> Self:
        """Give the whole call, with all its rounds and tools, at most *seconds*.

        That is in place of the client's default. A request that is made within another one, in a
        tool or an advisor, ends by the deadline of that one in any case.

        Raises:
            UsageError: That is not a number, nor a `timedelta`, or not greater than 0.
        """
        return self._with(self._spec.with_deadline(seconds))

    def tool_calling(self, enabled: bool) -> Self:  # noqa: FBT001 - reads as a fact
        """Say whether tools are run; if not, tool calls come back unexecuted.

        Raises:
            WrongTypeError: *enabled* is not a bool.
        """
        return self._with(self._spec.with_tool_calling(enabled))

    def template_renderer(self, renderer: TemplateRenderer) -> Self:
        """Set what fills the placeholders of this request."""
        check_callable("a template renderer", renderer, takes=("template", "values"))
        return self._with(replace(self._spec, renderer=renderer))

    @property
    def spec(self) -> RequestSpec:
        """What the methods have gathered so far."""
        return self._spec

    def mutate(self) -> ChatClientBuilder:
        """Return a builder of clients whose defaults are what this request has."""
        return ChatClientBuilder(self._client._engine, self._spec.as_defaults())

    def call(self) -> CallResponse:
        """Return the answer, blocking; the request runs when the answer is first asked for."""
        return CallResponse(self._run, BLOCKING)

    def acall(self) -> AsyncCallResponse:
        """Return the answer, to be awaited; the request runs when it first is."""
        return AsyncCallResponse(self._run, ON_LOOP)

    def stream(self) -> StreamResponse:
        """Return what happens on the way to the answer, blocking."""
        return StreamResponse(self._run, BLOCKING)

    def astream(self) -> AsyncStreamResponse:
        """Return what happens on the way to the answer, asynchronously."""
        return AsyncStreamResponse(self._run, ON_LOOP)

    def _run(
        self, runtime: Runtime, output: StructuredOutput[Any] | None = None
    ) -> Coroutine[Any, Any, ChatClientResponse]:
        return self._client._pipeline.run(self._spec, runtime, output)

    def _with(self, spec: RequestSpec) -> Self:
        return type(self)(self._client, spec)

    if not TYPE_CHECKING:  # see the builder's

        def __getattr__(self, name: str) -> Any:
            hint = ""
            if hasattr(CallResponse, name):
                hint = f"; send it first: .call().{name}()"
            elif hasattr(StreamResponse, name):
                hint = f"; stream it: .stream().{name}()"
            elif name in _ASKING:
                hint = "; send it: .call().content()"
            elif name.endswith("memory"):
                hint = f"; {_REMEMBERING} of the client"
            elif name.startswith("default_"):
                hint = f"; of one request it is .{name.removeprefix('default_')}(...)"
            elif name in OptionValues.__annotations__:
                hint = f"; it is an option: .options({name}=...)"
            raise missing(self, name, hint)

    def __repr__(self) -> str:
        return f"ChatClientRequestSpec({self._client.model.name})"


def _model(given: ChatModel | str) -> ChatModel:
    """Return the model that is given, or named.

    Raises:
        UsageError: The name names no provider, or it is not a model.
    """
    model = chat_model(given) if isinstance(given, str) else given
    hint = "it may also be named, such as ChatClient.create('openai:gpt-5-mini')"
    check_kind("a model", model, ChatModel, hint)
    return model
