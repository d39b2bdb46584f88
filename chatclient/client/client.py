"""`ChatClient`: a model with default settings, and the requests that it makes."""

import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Unpack, overload

from chatclient._internal.checks import (
    missing_attribute,
)
from chatclient._internal.closeable import Closeable
from chatclient._internal.foreign_names import CALL_SYNONYMS
from chatclient._internal.parameters import explained, with_parentheses
from chatclient._internal.text import printable_line
from chatclient.chain.chain import (
    AdvisorChain,
    ChatClientRequest,
    ChatClientResponse,
    is_tool_calling,
    name_of,
    order_of,
)
from chatclient.chat.messages import Message
from chatclient.chat.model import ChatModel
from chatclient.chat.parts import ToolCall
from chatclient.chat.pending_turn import (
    ApprovalRequired,
    Decision,
    Decisions,
    PendingTurn,
    Resumption,
)
from chatclient.chat.prompt import Prompt
from chatclient.chat.tool import (
    USER_ID,
    ToolCallback,
    ToolContext,
    ToolDefinition,
    ToolMetadata,
    ToolProgress,
    ToolResult,
)
from chatclient.chat.turn import present_recorder
from chatclient.client.accessors import pending_in
from chatclient.client.builder import ChatClientBuilder
from chatclient.client.call_response import CallResponse
from chatclient.client.pipeline import Pipeline
from chatclient.client.request import MEANT, ChatClientRequestSpec, prompt_hint
from chatclient.client.request_settings import RequestSettings, check_text
from chatclient.client.shared_parts import SharedParts, model_of
from chatclient.errors import ToolArgumentError, ToolUsageError, UsageError
from chatclient.runtime.runtime import Runtime
from chatclient.tools.execution.approval import AGENT_TURNS
from chatclient.tools.execution.manager import ToolCallingManager
from chatclient.tools.execution.toolset import ToolCallbackResolver
from chatclient.tools.function.result import to_tool_result
from chatclient.tools.function.schema import (
    ToolSignature,
    check_compensation,
    check_tool_name,
    signature_of_model,
    signature_of_schema,
)

if TYPE_CHECKING:
    from chatclient.client.batch import Batch, BatchRequest, BatchSettings
    from chatclient.settings.settings import ChatClientSettings
    from chatclient.tools.search.index import ToolIndex

from html import escape


def describe_chain(chain: AdvisorChain, client: str | None, *, rounds: bool) -> str:
    """Return the chain as text, outermost first.

    Args:
        chain: The chain.
        client: The name of the client, or None.
        rounds: Whether tools are run. If so, advisors inside the tool loop are indented.
    """
    lines = ["ChatClient" if client is None else f"ChatClient {client!r}"]
    indent = ""
    for advisor in chain.advisors:
        lines.append(f"{indent}→ {name_of(advisor)} (order {order_of(advisor)})")
        if rounds and is_tool_calling(advisor):
            indent = "    "
            lines[-1] += ": what follows runs once per round"
    lines.append(f"{indent}→ {chain.model.name} ({type(chain.model).__name__})")
    return "\n".join(map(printable_line, lines))


def draw_chain(chain: AdvisorChain, client: str | None, *, rounds: bool) -> str:
    """Return the chain as a Mermaid flowchart.

    Args:
        chain: The chain.
        client: The name of the client, or None.
        rounds: Whether tools are run. If so, the inside of the tool loop is a subgraph.
    """
    lines = ["flowchart TB", f'    client(["{client or "ChatClient"}"])']
    indent, above = "    ", "client"
    for number, advisor in enumerate(chain.advisors):
        here = f"advisor{number}"
        lines.append(f'{indent}{here}["{name_of(advisor)}"]')
        lines.append(f"{indent}{above} --> {here}")
        if rounds and is_tool_calling(advisor):
            lines.append(f'{indent}tools[["tools"]]')
            lines.append(f"{indent}{here} <--> tools")
            lines.append(f'{indent}subgraph loop ["once per round"]')
            indent *= 2
        above = here
    lines.append(f'{indent}model[("{chain.model.name}")]')
    lines.append(f"{indent}{above} --> model")
    if len(indent) > 4:  # noqa: PLR2004 - in the subgraph
        lines.append("    end")
    return "\n".join(map(printable_line, lines))


ConversationOf = Callable[[ToolContext], str | Awaitable[str]]
"""A plain or async function that returns the conversation id for a call of the agent."""

AgentTurn: TypeAlias = tuple[PendingTurn, Mapping[str, Decision]]
"""A suspended turn of the agent, and the decisions about its tool calls."""

AgentRequest = Callable[[str | AgentTurn], ChatClientRequestSpec]
"""Returns the request for a question, or for a turn to resume."""


class ClientTool:
    """A client as a tool: the argument is the user message, and the answer is the result.

    Attributes:
        has_steps: Its calls consist of steps of the turn, those of the client; see `is_agent`.
    """

    has_steps = True

    def __init__(
        self,
        request_for: AgentRequest,
        name: str,
        description: str,
        *,
        metadata: ToolMetadata | None,
        conversation: str | ConversationOf | None,
        input_type: Any,
    ) -> None:
        check_tool_name(name)
        takes = (
            _text_signature() if input_type is None else signature_of_model(input_type, name=name)
        )
        self.definition = ToolDefinition(name, description, takes.input_schema)
        self.metadata = metadata or ToolMetadata()
        if self.metadata.compensation is not None:
            check_compensation(name, takes.parameters, self.metadata.compensation)
        self._request_for = request_for
        self._takes = takes
        self._conversation = conversation

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        """Run a request of the client, or resume its suspended turn.

        Raises:
            ApprovalRequired: Tool calls of the client wait for approval.
            ToolArgumentError: The question is blank.
            ToolUsageError: The client rejects requests like this.
        """

        async def emit(event: Any) -> None:
            await context.emit(ToolProgress(context.tool_call_id, self.definition.name, event))

        # Its effects are undone if the request fails that this call is part of.
        runtime = replace(context.runtime, steps=None, observers=(), emitter=emit)
        question: AgentTurn | str | None = context.get(AGENT_TURNS, {}).get(context.tool_call_id)
        conversation = None  # a resumed turn has its conversation id
        if question is None:
            conversation = self._conversation
            question = self._question(arguments, context)
        try:
            if callable(conversation):
                conversation = await context.runtime.invoke(conversation, context)
            response = await self._request(question, conversation, context)._run(runtime)
        except ToolUsageError:
            raise
        except UsageError as error:
            msg = f"the agent {self.definition.name!r} cannot be asked: {error}"
            raise ToolUsageError(msg) from error
        turn = pending_in(response)
        if turn is not None:
            raise ApprovalRequired(turn)
        return ToolResult(response.chat_response.text)

    async def check_decisions(
        self, resumption: Resumption, context: Mapping[str, Any], runtime: Runtime
    ) -> None:
        """Check that decisions about the client's own calls can be applied.

        Raises:
            ToolUsageError: A tool is missing, or cannot be run with the arguments of a decision.
        """
        request = self._request_for((resumption.pending, resumption.decisions))
        await request.pipeline.check_decisions(resumption, context, runtime, request.settings)

    def read_arguments(self, arguments: str) -> Mapping[str, Any]:
        """Return the arguments by name; see `ToolInvocation.arguments`.

        Raises:
            ToolArgumentError: The arguments do not match the schema.
        """
        return self._takes.read(arguments)

    def _request(
        self, question: str | AgentTurn, conversation: str | None, context: ToolContext
    ) -> ChatClientRequestSpec:
        request = self._request_for(question)
        if conversation is not None:
            request = request.conversation(conversation)
        if USER_ID in context and USER_ID not in request.settings.advisor_params:
            request = request.advisor_params({USER_ID: context[USER_ID]})
        # If the turn is repeated, the call has the same key, and the agent repeats its turn.
        key, recorder = context.idempotency_key, present_recorder()
        if recorder is not None:
            call = ToolCall(context.tool_call_id, context.tool_name, context.arguments or "{}")
            recorder = recorder.inside(f"agent {call.name} {key}", call)
        turn = replace(request.settings.turn, id=key, recorder=recorder)
        return request.in_turn(turn).tool_context(context)

    def _question(self, arguments: str, context: ToolContext) -> str:
        """Return the question of the model; a value of `input_type` as JSON."""
        [given] = self._takes.bind(arguments, context).values()
        text = to_tool_result(given).text
        if not text.strip():
            name = self.definition.name
            msg = f"{name} needs a question; its request is blank"
            raise ToolArgumentError(msg, tool_name=name)
        return text


def conversation_below(name: str) -> ConversationOf:
    """Return a function that derives the conversation id of an agent from its caller's."""
    return functools.partial(_conversation_below, name)


def _conversation_below(name: str, context: ToolContext) -> str:
    outside = context.conversation_id
    if outside is None:
        msg = (
            f"the agent {name!r} has a memory, and there is no conversation for it to continue:"
            ' give the request one with .conversation("..."), or as_tool(..., conversation=...)'
        )
        raise ToolUsageError(msg)
    return f"{outside}/{name}"


@functools.cache
def _text_signature() -> ToolSignature:
    """Return the signature with one text; created lazily because importing pydantic is slow."""
    return signature_of_schema(
        {
            "properties": {"request": {"type": "string", "description": "What is asked for."}},
            "required": ["request"],
            "additionalProperties": False,
        }
    )


T = TypeVar("T")


class ChatClient(Closeable):
    """A chat model with default settings for requests.

    Immutable, and safe to share between threads, tasks and event loops. Create one with
    `ChatClient.builder(model)`, or `ChatClient.create(model)` without default settings.
    """

    def __init__(self, shared: SharedParts, defaults: RequestSettings | None = None) -> None:
        given: object = shared
        if not isinstance(given, SharedParts) or defaults is None:
            msg = "a client is made by ChatClient.create(model), or by ChatClient.builder(model)"
            raise UsageError(msg)
        self._shared = shared
        self._defaults = defaults
        self._pipeline = Pipeline(shared, defaults)

    @classmethod
    @explained
    def create(cls, model: ChatModel | str) -> "ChatClient":
        """Return a client of *model* without default settings; see `builder`."""
        return cls.builder(model).build()

    @classmethod
    @explained
    def builder(cls, model: ChatModel | str) -> ChatClientBuilder:
        """Return a builder for a client of *model*.

        Args:
            model: A chat model, or its name: `"openai:gpt-5-mini"`, `"local"`.

        Raises:
            UsageError: The provider in the name is unknown, or *model* is not a model.
        """
        return ChatClientBuilder(
            SharedParts(model_of(model), ToolCallingManager()), RequestSettings()
        )

    @classmethod
    def from_settings(
        cls,
        settings: "ChatClientSettings | None" = None,
        *,
        model: ChatModel | None = None,
        resolver: ToolCallbackResolver | None = None,
        tool_index: "ToolIndex | None" = None,
    ) -> "ChatClient":
        """Return a client configured by settings; use `mutate()` to change it further.

        Args:
            settings: The settings; default: `ChatClientSettings.load()`.
            model: Replaces the model in the settings.
            resolver: Finds tools by name.
            tool_index: Replaces the tool index in the settings.

        Raises:
            UsageError: A setting is invalid, or an object that it requires is missing.
        """
        from chatclient.settings.client_parts import client_parts  # noqa: PLC0415 - an extra

        return ChatClient(*client_parts(settings, model, resolver, tool_index))

    @property
    def model(self) -> ChatModel:
        """The chat model of this client."""
        return self._shared.model

    @property
    def name(self) -> str | None:
        """The name of the client, or None."""
        return self._shared.name

    @with_parentheses
    @prompt_hint
    def prompt(
        self, prompt: str | Message | Iterable[Message] | Prompt | None = None
    ) -> ChatClientRequestSpec:
        """Return a new request.

        Args:
            prompt: The user text; or messages; or a `Prompt`, whose options take precedence over
                those of the client; or None for an empty request.

        Raises:
            UsageError: The text is blank, or not a string.
            TypeError: One of the messages is not a message.
        """
        if not isinstance(prompt, str | Prompt | None):
            check_text(prompt, Message, Iterable)
        request = ChatClientRequestSpec(self._pipeline, self._defaults)
        if prompt is None:
            return request
        if isinstance(prompt, Prompt):
            return request.messages(prompt.messages).options(prompt.options)
        if isinstance(prompt, str):
            return request.user(prompt)
        return request.messages(prompt)

    @overload
    def batch(
        self,
        requests: "Iterable[BatchRequest] | Mapping[str, BatchRequest]",
        entity: None = None,
        **settings: "Unpack[BatchSettings]",
    ) -> "Batch[str]": ...

    @overload
    def batch(
        self,
        requests: "Iterable[BatchRequest] | Mapping[str, BatchRequest]",
        entity: type[T],
        **settings: "Unpack[BatchSettings]",
    ) -> "Batch[T]": ...

    @overload
    def batch(
        self,
        requests: "Iterable[BatchRequest] | Mapping[str, BatchRequest]",
        entity: Any,
        **settings: "Unpack[BatchSettings]",
    ) -> "Batch[Any]": ...

    def batch(
        self,
        requests: "Iterable[BatchRequest] | Mapping[str, BatchRequest]",
        entity: Any = None,
        **settings: "Unpack[BatchSettings]",
    ) -> "Batch[Any]":
        """Return many requests, which are sent when the batch is iterated over.

        Args:
            requests: Requests of this client, or what `prompt` takes; a mapping gives them keys.
            entity: The type of the answers, as in `CallResponse.entity`; default: text.
            **settings: How the batch runs; see `BatchSettings`.

        Raises:
            UsageError: There is no request, one belongs to another client or has an advisor param
                without a reader, a setting is invalid, or the provider has no batch API.
        """
        from chatclient.client.batch import batch_of  # noqa: PLC0415 - rarely needed

        return batch_of(self._pipeline, self.prompt, requests, entity, **settings)

    def resume(self, turn: PendingTurn | str, decisions: Decisions) -> ChatClientRequestSpec:
        """Return a request that resumes a turn after approval, in this process or another one.

        Args:
            turn: The `pending_turn()` of the response, or its JSON.
            decisions: A mapping from the id of each tool call to a bool or a `Decision`; or a
                `Decision`, `"approve"` or `"deny"` for all. `PendingTurn.to_decide` has the ids.

        Returns:
            A request with the messages of the turn. Set again what the first request had in
            addition to the defaults of the client, such as tools.

        Raises:
            UsageError: A decision is missing, or *turn* is not a pending turn.
        """
        return self.prompt().resuming(turn, decisions)

    def as_tool(
        self,
        name: str | None = None,
        description: str | None = None,
        *,
        metadata: ToolMetadata | None = None,
        conversation: str | ConversationOf | None = None,
        input_type: Any = None,
    ) -> ToolCallback:
        """Return this client as a tool for another client: an agent.

        Each tool call is a separate request within the deadline of the calling request. Events
        of the agent are streamed as `ToolProgress` and appear in the trail of the caller.

        Args:
            name: The name of the tool; default: the name of the client.
            description: The description of the tool for the model; required.
            metadata: How the tool is run.
            conversation: For an agent with a memory: the conversation id, or a plain or async
                function of the `ToolContext` that returns it. Default: `{id}/{name}` with the
                conversation id of the caller.
            input_type: The type of the input, such as a pydantic model, which the agent receives
                as JSON. Default: a text, `request`.

        Raises:
            UsageError: The name or the description is missing.
            ToolDefinitionError: Providers do not accept the name, the type has no schema, or the
                compensation has a parameter that the tool does not have.
        """
        name = self.name if name is None else name
        if name is None:
            msg = "the tool needs a name: as_tool(name, ...), or builder.name(...) for the client"
            raise UsageError(msg)
        if description is None:
            msg = f"the tool {name!r} needs a description that tells the model when to call it"
            raise UsageError(msg)
        if conversation is None and self._defaults.lacks_conversation:
            conversation = conversation_below(name)
        return ClientTool(
            self._agent_request,
            name,
            description,
            metadata=metadata,
            conversation=conversation,
            input_type=input_type,
        )

    def _agent_request(self, question: str | AgentTurn) -> ChatClientRequestSpec:
        return self.prompt(question) if isinstance(question, str) else self.resume(*question)

    async def take_over(self, request: ChatClientRequest) -> ChatClientResponse:
        """Return the response to the conversation of another client; see `handoff`."""
        return await self._pipeline.take_over(request)

    def mutate(self) -> ChatClientBuilder:
        """Return a builder with the settings of this client."""
        return ChatClientBuilder(self._shared, self._defaults)

    def close(self) -> None:
        """Close the connections of the model, and of a memory created from settings."""
        self._shared.close()

    async def aclose(self) -> None:
        """Close what `close` closes, and the connections of this event loop."""
        await self._shared.aclose()

    if not TYPE_CHECKING:  # see `ChatClientBuilder.__getattr__`

        def __getattr__(self, name: str) -> Any:
            hint = ""
            if name in ("build", "clone"):
                hint = "; it is built and never changes: use it as it is, or client.mutate() it"
            elif hasattr(ChatClientBuilder, name):
                hint = f"; a changed client is client.mutate().{name}(...).build()"
            elif hasattr(ChatClientRequestSpec, name):
                hint = f"; a request has: client.prompt(...).{name}(...)"
            elif name in CALL_SYNONYMS or hasattr(CallResponse, name):
                accessor = "content" if name in CALL_SYNONYMS else name
                hint = f"; ask it: client.prompt(...).call().{accessor}()"
            elif name in MEANT:
                hint = f"; of a request, client.prompt(...): {MEANT[name]}"
            raise missing_attribute(self, name, hint)

    def __repr__(self) -> str:
        return f"ChatClient({self._shared.label})"

    def __str__(self) -> str:
        pipeline = self._pipeline
        return describe_chain(pipeline.chain, self.name, rounds=pipeline.runs_tools)

    def _repr_html_(self) -> str:
        """Return a picture of the chain, which notebooks show."""
        pipeline = self._pipeline
        return svg_of(pipeline.chain, self.name, rounds=pipeline.runs_tools)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002, FBT001 - IPython's
        """Print the chain in the terminal of IPython."""
        printer.text(str(self))

    def diagram(self) -> str:
        """Return the advisor chain as a Mermaid flowchart."""
        pipeline = self._pipeline
        return draw_chain(pipeline.chain, self.name, rounds=pipeline.runs_tools)


_WIDTH, _HEIGHT, _GAP, _INDENT, _LABEL = 300, 30, 18, 24, 12


def svg_of(chain: AdvisorChain, client: str | None, *, rounds: bool) -> str:
    """Return the chain from the client to the model, one box below the other, as SVG.

    Args:
        chain: The chain.
        client: The name of the client, or None.
        rounds: Whether tools are run. If so, a frame is around what runs once per round.
    """
    names, inner = [client or "ChatClient"], None
    for number, advisor in enumerate(chain.advisors, 1):
        names.append(name_of(advisor))
        if rounds and is_tool_calling(advisor):
            inner = number + 1
    names.append(chain.model.name)
    step = _HEIGHT + _GAP
    width, height = _WIDTH + 2 * _INDENT, len(names) * step + _GAP
    parts = [_box(name, _GAP + at * step) for at, name in enumerate(names)]
    parts += [_arrow(_GAP + at * step + _HEIGHT) for at in range(len(names) - 1)]
    if inner is not None:
        top = _GAP + inner * step - _GAP // 3
        height += _LABEL
        parts.append(
            f'<rect x="{_INDENT // 2}" y="{top}" width="{_WIDTH + _INDENT}"'
            f' height="{height - top - 4}" rx="8" fill="none" stroke="currentColor"'
            ' stroke-dasharray="4"/>'
            f'<text x="{_WIDTH + _INDENT}" y="{height - 10}" text-anchor="end" font-size="10"'
            ' fill="currentColor">once per round</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" role="img"'
        ' font-family="sans-serif" font-size="13"><title>Advisor chain</title>'
        f"{''.join(parts)}</svg>"
    )


def _box(name: str, top: int) -> str:
    middle = _INDENT + _WIDTH // 2
    return (
        f'<rect x="{_INDENT}" y="{top}" width="{_WIDTH}" height="{_HEIGHT}" rx="5" fill="none"'
        f' stroke="currentColor"/><text x="{middle}" y="{top + 20}" text-anchor="middle"'
        f' fill="currentColor">{escape(name)}</text>'
    )


def _arrow(top: int) -> str:
    middle, end = _INDENT + _WIDTH // 2, top + _GAP
    return f'<path d="M{middle} {top}V{end}m-4 -5l4 5l4 -5" fill="none" stroke="currentColor"/>'
