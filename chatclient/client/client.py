"""`ChatClient`: a model with default settings, and the requests that it makes."""

from collections.abc import Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from chatclient._internal.checks import (
    missing_attribute,
)
from chatclient._internal.closeable import Closeable
from chatclient._internal.parameters import explained
from chatclient.chain.chain import ChatClientRequest, ChatClientResponse
from chatclient.chat.messages import Message
from chatclient.chat.model import ChatModel
from chatclient.chat.pending_turn import PendingTurn
from chatclient.chat.prompt import Prompt
from chatclient.chat.resumption import Decisions
from chatclient.chat.tool import ToolCallback, ToolMetadata
from chatclient.client.agent_tool import AgentTurn, ClientTool, ConversationOf, conversation_below
from chatclient.client.builder import ChatClientBuilder
from chatclient.client.call_response import CallResponse
from chatclient.client.chain import describe_chain, draw_chain
from chatclient.client.pipeline import Pipeline
from chatclient.client.request import CALL_SYNONYMS, ChatClientRequestSpec
from chatclient.client.request_settings import RequestSettings, check_text
from chatclient.client.shared_parts import SharedParts, model_of
from chatclient.errors import UsageError
from chatclient.tools.execution.manager import ToolCallingManager
from chatclient.tools.execution.toolset import ToolCallbackResolver

if TYPE_CHECKING:  # only loaded with batches, settings and tool search
    from chatclient.client.batch import Batch, BatchRequest, BatchSettings
    from chatclient.client.settings import ChatClientSettings
    from chatclient.tools.search.index import ToolIndex

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
        from chatclient.client.from_settings import client_parts  # noqa: PLC0415 - an extra

        return ChatClient(*client_parts(settings, model, resolver, tool_index))

    @property
    def model(self) -> ChatModel:
        """The chat model of this client."""
        return self._shared.model

    @property
    def name(self) -> str | None:
        """The name of the client, or None."""
        return self._shared.name

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
            raise missing_attribute(self, name, hint)

    def __repr__(self) -> str:
        return f"ChatClient({self._shared.label})"

    def __str__(self) -> str:
        pipeline = self._pipeline
        return describe_chain(pipeline.chain, self.name, rounds=pipeline.runs_tools)

    def _repr_html_(self) -> str:
        """Return the chain as HTML, which notebooks show."""
        return f"<pre>{escape(str(self))}</pre>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002, FBT001 - IPython's
        """Print the chain in the terminal of IPython."""
        printer.text(str(self))

    def diagram(self) -> str:
        """Return the advisor chain as a Mermaid flowchart."""
        pipeline = self._pipeline
        return draw_chain(pipeline.chain, self.name, rounds=pipeline.runs_tools)
