"""`ChatClientRequestSpec`: collects the settings of a request, then calls or streams."""

import warnings
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

from chatclient._internal.checks import check_callable, checked_id, missing_attribute
from chatclient._internal.foreign_names import CALL_SYNONYMS
from chatclient._internal.frozen import EMPTY
from chatclient._internal.parameters import with_hint, with_parentheses
from chatclient.chain.chain import Advisor, ChatClientResponse
from chatclient.chat.messages import Media, Message
from chatclient.chat.model import ChatModel
from chatclient.chat.options import ChatOptions, OptionValues
from chatclient.chat.pending_turn import Decisions, PendingTurn, Resumption, decisions_for
from chatclient.chat.template import TemplateRenderer
from chatclient.chat.tool import CONVERSATION_ID
from chatclient.chat.turn import TURN_KEY, TurnSettings
from chatclient.client.builder import MEMORY_HINT, ChatClientBuilder
from chatclient.client.call_response import AsyncCallResponse, CallResponse
from chatclient.client.dropped import warn_if_dropped
from chatclient.client.options import with_request_options
from chatclient.client.pipeline import Pipeline
from chatclient.client.request_settings import (
    RequestSettings,
    advisors_hint,
    merge_params,
    text_hint,
)
from chatclient.client.stream_response import AsyncStreamResponse, StreamResponse
from chatclient.errors import UsageError
from chatclient.runtime.runtime import BLOCKING, ON_LOOP, Runtime
from chatclient.structured.output import StructuredOutput
from chatclient.tools.sources import ToolSource

if TYPE_CHECKING:  # only loaded if used
    from chatclient.client.options import SystemFunction


def _of_a_prompt(name: str) -> str:
    """Return a hint for an unknown parameter of `ChatClient.prompt`."""
    if hasattr(ChatClientRequestSpec, name):
        return f"a request has it: client.prompt(...).{name}(...)"
    if name in OptionValues.__annotations__:
        return f"it is an option: client.prompt(...).options({name}=...)"
    return f"values for a template: client.prompt().user(text, params={{{name!r}: ...}})"


def _of_a_call(name: str) -> str:
    """Return a hint for an unknown parameter of `call`."""
    if name in ("stream", "streaming"):
        return "a stream is .stream(), or .astream()"
    return "everything is said before: " + (
        f".options({name}=...)" if name in OptionValues.__annotations__ else ".call() takes nothing"
    )


def _of_tools(name: str) -> str:
    """Return a hint for an unknown parameter of `tools`."""
    return f"tools are given one by one: .tools(function, ...), not {name}=[...]"


tools_hint = with_hint(_of_tools)
prompt_hint, call_hint = with_hint(_of_a_prompt), with_hint(_of_a_call)

MEANT = {
    "bind": "options go into .options(...)",
    "bind_tools": "tools go into .tools(...)",
    "json": ".call().entity(type) is the answer as data",
    "media": "it belongs to the user's message: .user(text, media=...)",
    "images": "they belong to the user's message: .user(text, media=...)",
    "param": "values for a template are params: .user(text, params={...})",
    "params": "values for a template are params: .user(text, params={...})",
    "conversation_id": "a request belongs to a .conversation(id)",
    "max_retries": "a model has it: OpenAIChatModel(..., max_retries=...)",
    "retry": "a model has it: OpenAIChatModel(..., max_retries=...)",
    "session": "a request belongs to a .conversation(id)",
    "session_id": "a request belongs to a .conversation(id)",
    "timeout": "the whole request has a .deadline(seconds), and a model its timeout=",
    "tool": "one tool, or several: .tools(...)",
    "tool_calls": "those that were run are .call().tool_executions()",
    "with_structured_output": ".call().entity(type) is the answer as data",
}
"""What to write instead of attributes that requests do not have."""


class ChatClientRequestSpec:
    """A request before it is sent; immutable, each method returns a new one.

    A statement that makes a request and drops it emits a `RuntimeWarning`.
    """

    __slots__ = ("_pipeline", "_settings", "_used")

    def __init__(self, pipeline: Pipeline, settings: RequestSettings) -> None:
        self._pipeline = pipeline
        self._settings = settings
        self._used = False

    def _use(self) -> RequestSettings:
        """Return the settings, and note that the request was used, even if the caller raises."""
        self._used = True
        return self._settings

    @text_hint
    def system(
        self,
        text: "str | SystemFunction | None" = None,
        *,
        params: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Self:
        """Set the system text, which is sent first.

        Args:
            text: Replaces the default text. A template if *params* is given, otherwise sent
                unchanged. Or a plain or async function that is called for each request and may
                have a `SystemRequest` parameter.
            params: Values for the placeholders of the template, added to earlier ones.
            metadata: Metadata of the message for the application; not sent.

        Raises:
            UsageError: The text is blank, or not a string.
        """
        return self.with_settings(self._use().with_system(text, params, metadata))

    @text_hint
    def user(
        self,
        text: str | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        media: Media | Iterable[Media] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> Self:
        """Set the user text and media, which are sent last.

        Args:
            text: Replaces the default text, and an earlier one with a `RuntimeWarning`. A template
                if *params* is given, otherwise sent unchanged.
            params: Values for the placeholders of the template, added to earlier ones.
            media: Images and other content, added to earlier ones.
            metadata: Metadata of the message for the application; not sent.

        Raises:
            UsageError: The text is blank, or not a string.
        """
        settings = self._use()
        before = settings.user.text
        if text is not None and before and before != self._pipeline.defaults.user.text:
            msg = (
                "an earlier user text is replaced and not sent: give one, in prompt() or in user()"
            )
            warnings.warn(msg, RuntimeWarning, stacklevel=2)
        return self.with_settings(settings.with_user(text, params, media, metadata))

    def messages(self, *messages: Message | Iterable[Message]) -> Self:
        """Add messages between the system text and the user text."""
        return self.with_settings(self._use().with_messages(messages))

    def options(
        self, options: ChatOptions | None = None, /, **values: Unpack[OptionValues]
    ) -> Self:
        """Set options, in addition to earlier ones; tools in them replace the default tools.

        Args:
            options: Options of the provider, or common ones.
            **values: Single options by name, such as `temperature=0.2`; None drops the value of the
                client or the model. Provider-specific options work, but type checkers know them
                only in the options class of the provider.

        Raises:
            UsageError: The provider has no such option, or *options* is not a `ChatOptions`.
        """
        settings, shared = self._use(), self._pipeline.shared
        return self.with_settings(with_request_options(shared, settings, options, values))

    def model(self, model: ChatModel) -> Self:
        """Use another model, of any provider, for this request.

        Its default options replace those of the client's model. Options of the request and the
        client are kept if its provider has them, except for the model name.

        Args:
            model: A chat model, which the application creates and closes.

        Raises:
            UsageError: *model* is not a model. (For another model of the same provider, use
                `.options(model="...")`.)
        """
        settings, given = self._use(), cast("object", model)
        if not isinstance(given, ChatModel):
            msg = (
                f"{given!r} is not a chat model; make one once, for all requests, or choose another"
                ' model of the same provider by its name: .options(model="...")'
            )
            raise UsageError(msg)
        return type(self)(self._pipeline.with_model(model), settings.without_model_name())

    @tools_hint
    def tools(self, *sources: ToolSource, keep_defaults: bool = False) -> Self:
        """Add tools for this request, which replace the default tools of the client.

        Args:
            *sources: Functions, objects with `@tool` methods, tool callbacks, tool providers,
                names for the resolver of the client, and collections of these.
            keep_defaults: Whether to offer the default tools as well.

        Raises:
            ToolDefinitionError: A source contains no tool, or a tool is invalid.
        """
        return self.with_settings(self._use().with_tools(sources, keep_defaults=keep_defaults))

    def tool_context(self, context: Mapping[str, Any] | None = None, /, **more: Any) -> Self:
        """Add values for the tools, which the model does not see."""
        return self.with_settings(
            self._use().with_tool_context(merge_params("a tool context", context, more))
        )

    @advisors_hint
    def advisors(
        self,
        *advisors: Advisor | Iterable[Advisor],
        params: Mapping[str, Any] | None = None,
    ) -> Self:
        """Add advisors to those of the client, and params for all advisors."""
        return self.with_settings(self._use().with_advisors(advisors, params))

    def advisor_params(self, params: Mapping[str, Any] | None = None, /, **more: Any) -> Self:
        """Add values to the context of the advisors."""
        return self.with_settings(
            self._use().with_advisors((), merge_params("params", params, more))
        )

    def conversation(self, conversation_id: str) -> Self:
        """Set the conversation id, which memory advisors and tools read.

        Raises:
            UsageError: The id is blank, or not a string.
        """
        settings = self._use()
        params = {CONVERSATION_ID: checked_id(conversation_id)}
        return self.with_settings(settings.with_advisors((), params))

    def idempotency_key(self, key: str) -> Self:
        """Set a key for the turn, so that a repeated request continues the same turn.

        A memory stores the turn once, and a repeated tool call has the same
        `ToolContext.idempotency_key`. Use different keys for different conversations, users and
        tenants.

        Raises:
            UsageError: The key is blank, or not a string.
        """
        settings, params = self._use(), {TURN_KEY: checked_id(key, "an idempotency key")}
        return self.with_settings(settings.with_advisors((), params))

    def deadline(self, seconds: float | timedelta) -> Self:
        """Limit the duration of the call, with all rounds and tools, to *seconds*.

        This replaces the default deadline of the client. A request that a tool or advisor makes
        during another request also has the deadline of that request.

        Raises:
            UsageError: *seconds* is not a number or `timedelta` greater than 0.
        """
        return self.with_settings(self._use().with_deadline(seconds))

    def tool_calling(self, enabled: bool) -> Self:  # noqa: FBT001 - reads as a fact
        """Set whether tools are run; if not, the tool calls are returned.

        Raises:
            WrongTypeError: *enabled* is not a bool.
        """
        return self.with_settings(self._use().with_tool_calling(enabled))

    def template_renderer(self, renderer: TemplateRenderer) -> Self:
        """Set the function that fills the placeholders of this request."""
        settings = self._use()
        check_callable("a template renderer", renderer, takes=("template", "values"))
        return self.with_settings(replace(settings, renderer=renderer))

    @property
    def settings(self) -> RequestSettings:
        """The settings of this request."""
        return self._use()

    @property
    def pipeline(self) -> Pipeline:
        """What runs this request."""
        return self._pipeline

    def mutate(self) -> ChatClientBuilder:
        """Return a builder with the settings of this request as defaults."""
        return ChatClientBuilder(self._pipeline.shared, self._use().as_defaults())

    @with_parentheses
    @call_hint
    def call(self) -> CallResponse:
        """Return a blocking response; the request runs at the first access."""
        self._used = True
        return CallResponse(self._run, BLOCKING)

    @with_parentheses
    def acall(self) -> AsyncCallResponse:
        """Return an async response; the request runs at the first `await`."""
        self._used = True
        return AsyncCallResponse(self._run, ON_LOOP)

    @with_parentheses
    def stream(self) -> StreamResponse:
        """Return a blocking stream; the request runs while it is consumed."""
        self._used = True
        return StreamResponse(self._run, BLOCKING)

    @with_parentheses
    def astream(self) -> AsyncStreamResponse:
        """Return an async stream; the request runs while it is consumed."""
        self._used = True
        return AsyncStreamResponse(self._run, ON_LOOP)

    def _run(
        self, runtime: Runtime, output: StructuredOutput[Any] | None = None
    ) -> Coroutine[Any, Any, ChatClientResponse]:
        return self._pipeline.run(self._use(), runtime, output)

    def resuming(self, turn: PendingTurn | str, decisions: Decisions) -> Self:
        """Resume *turn*; see `ChatClient.resume`."""
        if isinstance(turn, str):
            turn = PendingTurn.from_json(turn)
        resumption = Resumption(turn, decisions_for(turn, decisions))
        settings = self._use()
        how = replace(settings.turn, resumption=resumption)
        settings = settings.with_turn(how, turn.messages)
        params: Mapping[str, Any] = EMPTY
        if turn.conversation_id is not None:
            params = {CONVERSATION_ID: turn.conversation_id}
        return self.with_settings(settings.with_advisors((), params))

    def in_turn(self, turn: TurnSettings) -> Self:
        """Return a request that gets its turn in another way."""
        return self.with_settings(replace(self._use(), turn=turn))

    def with_settings(self, settings: RequestSettings) -> Self:
        """Return a request with other settings."""
        return type(self)(self._pipeline, settings)

    if not TYPE_CHECKING:  # see `ChatClientBuilder.__getattr__`

        def __getattr__(self, name: str) -> Any:
            self._used = True  # the error refers to it
            hint = ""
            if hasattr(CallResponse, name):
                hint = f"; send it first: .call().{name}()"
            elif hasattr(StreamResponse, name):
                hint = f"; stream it: .stream().{name}()"
            elif name in CALL_SYNONYMS:
                hint = "; send it: .call().content()"
            elif name in MEANT:
                hint = f"; {MEANT[name]}"
            elif name.endswith("memory"):
                hint = f"; {MEMORY_HINT} of the client"
            elif name.startswith("default_"):
                hint = f"; of one request it is .{name.removeprefix('default_')}(...)"
            elif name in OptionValues.__annotations__:
                hint = f"; it is an option: .options({name}=...)"
            raise missing_attribute(self, name, hint)

    def __del__(self) -> None:
        if not getattr(self, "_used", True):
            warn_if_dropped("a request was made and never sent: nothing has happened")

    def __repr__(self) -> str:
        return f"ChatClientRequestSpec({self._pipeline.shared.model.name})"
