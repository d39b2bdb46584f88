"""What a client's defaults and a request's own calls add up to, before anything is sent."""

import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from types import NoneType
from typing import Any, Self

from chatclient import checks
from chatclient.chain import Advisor, is_advisor, name_of, order_of
from chatclient.checks import check_kind
from chatclient.errors import UsageError, WrongTypeError
from chatclient.instructions import SystemFunction, SystemRequest, WrittenSystem
from chatclient.messages import Media, Message, SystemMessage, UserMessage, flat_messages
from chatclient.options import NO_OPTIONS, ChatOptions
from chatclient.parts import as_tuple
from chatclient.prompt import is_blank
from chatclient.runtime import Runtime
from chatclient.template import DEFAULT_RENDERER, PromptTemplate, TemplateRenderer, rendered
from chatclient.tool import CONVERSATION_ID
from chatclient.tools.approval import ToolApproval
from chatclient.tools.sources import Resolved, ToolSource, resolve_sources
from chatclient.values import EMPTY, merged


@dataclass(frozen=True, slots=True)
class TextSpec:
    """The text of the system or user message, with what belongs to it.

    Attributes:
        text: The text.
        params: Values for its placeholders, those of texts that it replaces among them.
        media: What goes with it.
        metadata: What the message knows about itself.
        is_template: Whether params were given for this very text.
    """

    text: str = ""
    params: Mapping[str, Any] = EMPTY
    media: tuple[Media, ...] = ()
    metadata: Mapping[str, Any] = EMPTY
    is_template: bool = False

    def updated(
        self,
        text: str | None,
        params: Mapping[str, Any] | None,
        media: Iterable[Media],
        metadata: Mapping[str, Any] | None,
    ) -> Self:
        """Return this with another text if one is given, and everything else added.

        Raises:
            UsageError: The text is blank.
        """
        refuse_no_text(text, str, NoneType)
        if text is not None and not text.strip():
            msg = "the text is blank; leave it out to keep the default one"
            raise UsageError(msg)
        for what, given in (("params", params), ("metadata", metadata)):
            if given:
                check_kind(what, given, Mapping)
        return type(self)(
            self.text if text is None else text,
            merged(self.params, params or EMPTY),
            (*self.media, *media),
            merged(self.metadata, metadata or EMPTY),
            params is not None or (self.is_template and text is None),
        )

    def render(self, renderer: TemplateRenderer) -> str:
        """Return the text; one that no params were given for is no template and stays as it is."""
        return rendered(renderer, self.text, self.params) if self.is_template else self.text


def with_more(
    what: str, given: Mapping[str, Any] | None, more: Mapping[str, Any]
) -> dict[str, Any]:
    """Return *given* with *more* on top.

    Raises:
        WrongTypeError: It is not a mapping.
    """
    if given is not None:
        check_kind(what, given, Mapping, "pass a mapping, or values by name")
    return {**(given or {}), **more}


def refuse_no_text(given: object, *kinds: type) -> None:
    """Refuse what is of none of *kinds*, where a text would have been.

    Raises:
        WrongTypeError: It is none; the message says what to write in its place.
    """
    if isinstance(given, kinds):
        return
    match given:
        case PromptTemplate():
            msg = "a template has to be filled first: pass template.render(...)"
        case Path():
            msg = f"a path is not a text: pass Path({str(given)!r}).read_text()"
        case _:
            msg = f"{given!r} is not a text"
    raise WrongTypeError(msg)


# Where that belongs which bears on tools, by the name of its type.
_NO_ADVISORS = {
    "ToolCallingManager": "a client has it: builder.tool_calling_manager(manager)",
    "ToolFailurePolicy": "the manager has it: ToolCallingManager(exception_processor=policy)",
    "ToolLimits": "the manager has them: ToolCallingManager(limits=limits)",
}


def _check_advisor(given: Any) -> None:
    """Make sure that something is an advisor, and has a place in a chain.

    Raises:
        WrongTypeError: It is something else; the message says what to do with it.
    """
    if isinstance(given, ToolApproval):  # which is called with two arguments, too
        hint = "it stands around tool calls: ToolCallingManager(interceptors=[approval])"
    elif is_advisor(given):
        check_kind(f"the order of advisor {name_of(given)!r}", order_of(given), (int, float))
        return
    elif isinstance(given, type):
        hint = f"make one: {given.__name__}(...)"
    elif type(given).__name__.endswith("ChatMemory"):
        hint = "put it into one: MessageChatMemoryAdvisor(memory)"
    elif hasattr(given, "tool_callbacks"):
        hint = "it provides tools: .default_tools(...), or .tools(...) of a request"
    else:
        called = "those are called with (request, call_next)"
        hint = _NO_ADVISORS.get(type(given).__name__, called)
    msg = f"{given!r} is not an advisor; {hint}"
    raise WrongTypeError(msg)


def _with_text_id(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return *params* with the conversation's id as a text, which numbers and UUIDs have, too."""
    given = params.get(CONVERSATION_ID)
    if given is None or isinstance(given, str):
        return params
    return merged(params, {CONVERSATION_ID: str(given)})


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSpec:
    """Everything that the fluent methods gather; immutable, so that it can be shared.

    Attributes:
        written_system: What writes the system text when the request runs, in place of a text.
    """

    system: TextSpec = TextSpec()
    written_system: WrittenSystem | None = None
    user: TextSpec = TextSpec()
    messages: tuple[Message, ...] = ()
    options: ChatOptions | None = None
    default_tools: tuple[Resolved, ...] = ()
    tools: tuple[Resolved, ...] | None = None
    tool_context: Mapping[str, Any] = field(default=EMPTY, repr=False)
    advisors: tuple[Advisor, ...] = ()
    advisor_params: Mapping[str, Any] = EMPTY
    renderer: TemplateRenderer = DEFAULT_RENDERER
    tool_calling: bool = True
    deadline: float | None = None

    def with_system(
        self,
        text: str | SystemFunction | None,
        params: Mapping[str, Any] | None,
        metadata: Mapping[str, Any] | None,
    ) -> Self:
        """Return this with a system text, or more params for the present one."""
        if not callable(text):
            written = self.written_system if text is None else None
            system = self.system.updated(text, params, (), metadata)
        else:
            written = WrittenSystem.by(text)
            system = replace(self.system, text="", is_template=False)
            system = system.updated(None, params, (), metadata)
        return replace(self, system=system, written_system=written)

    def with_user(
        self,
        text: str | None,
        params: Mapping[str, Any] | None,
        media: Media | Iterable[Media],
        metadata: Mapping[str, Any] | None,
    ) -> Self:
        """Return this with a user text, or more params and media for the present one."""
        # A text or bytes can be iterated, too, and so would be reported letter by letter.
        given: Any = media
        several = isinstance(given, Iterable) and not isinstance(given, str | bytes)
        flat: tuple[Any, ...] = tuple(given) if several else (given,)
        for each in flat:
            if not isinstance(each, Media):
                hint = "make one: Media.from_file(path), or Media('image/png', bytes or URL)"
                msg = f"{reprlib.repr(each)} is not a Media; {hint}"
                raise WrongTypeError(msg)
        return replace(self, user=self.user.updated(text, params, flat, metadata))

    def with_messages(self, messages: Iterable[Message | Iterable[Message]]) -> Self:
        """Return this with more messages, given one by one or as collections."""
        return replace(self, messages=(*self.messages, *flat_messages(messages)))

    def with_options(self, options: ChatOptions) -> Self:
        """Return this with *options* over the present ones."""
        present = self.options
        return replace(self, options=options if present is None else present.merge(options))

    def with_options_of(self, kind: type[ChatOptions]) -> Self:
        """Return this with the present options as *kind* has them, as far as it knows them."""
        if self.options is None or isinstance(self.options, kind):
            return self
        return replace(self, options=kind().merge(self.options))

    def without_model_name(self) -> Self:
        """Return this for another model: what the present one is called means nothing to it."""
        if self.options is None or self.options.model is None:
            return self
        return replace(self, options=self.options.mutate(model=None))

    def with_deadline(self, seconds: float | timedelta) -> Self:
        """Return this with at most *seconds* for the whole request."""
        return replace(self, deadline=checks.seconds("a deadline", seconds))

    def with_tool_calling(self, enabled: bool) -> Self:  # noqa: FBT001 - as in the builder
        """Return this with tools that are run, or not."""
        check_kind("tool_calling", enabled, bool)  # "false" would be a yes
        return replace(self, tool_calling=enabled)

    def with_default_tools(self, sources: Iterable[ToolSource]) -> Self:
        """Return this with more tools that every request offers."""
        return replace(self, default_tools=(*self.default_tools, *resolve_sources(sources)))

    def with_tools(self, sources: Iterable[ToolSource], *, keep_defaults: bool) -> Self:
        """Return this with tools of the request's own, in place of the defaults or beside them."""
        before = self.tools or ()
        if keep_defaults:
            left_out = (d for d in self._all_defaults if not any(d is each for each in before))
            before = (*left_out, *before)
        return replace(self, tools=(*before, *resolve_sources(sources)))

    @property
    def _all_defaults(self) -> tuple[Resolved, ...]:
        """The default tools, or else those in the options, and those that options name."""
        options = self.options or NO_OPTIONS
        return (*(self.default_tools or options.tool_callbacks or ()), *(options.tool_names or ()))

    def with_tool_context(self, context: Mapping[str, Any]) -> Self:
        """Return this with more tool context."""
        return replace(self, tool_context=merged(self.tool_context, context))

    def with_advisors(
        self, advisors: Iterable[Advisor | Iterable[Advisor]], params: Mapping[str, Any] | None
    ) -> Self:
        """Return this with more advisors, and more params for all of them.

        Raises:
            WrongTypeError: One of them is not an advisor, or *params* are not a mapping.
        """
        if params:
            check_kind("params", params, Mapping)
        flat: list[Advisor] = []
        for advisor in advisors:
            # What can be called is an advisor, also if it can be iterated, as pydantic models can.
            flat.extend((advisor,) if callable(advisor) else as_tuple(advisor))
        for advisor in flat:
            _check_advisor(advisor)
        return replace(
            self,
            # The client's own tuple stays where nothing is added: its chain is built already.
            advisors=(*self.advisors, *flat) if flat else self.advisors,
            advisor_params=merged(self.advisor_params, _with_text_id(params or EMPTY)),
        )

    @property
    def tool_sources(self) -> tuple[Resolved, ...]:
        """The tools to offer: the request's own, or the defaults."""
        return self.default_tools if self.tools is None else self.tools

    def has_same_options(self, other: "RequestSpec") -> bool:
        """Return whether options and tools are the very ones of *other*."""
        return (
            self.options is other.options
            and self.tool_context is other.tool_context
            and self.tools is other.tools  # no tools of its own are not the same as none at all
            and self.default_tools is other.default_tools
            and self.tool_calling == other.tool_calling
        )

    def as_defaults(self) -> Self:
        """Return this as the defaults of another client: its tools are default tools there."""
        if self.tools is None:
            return self
        return replace(self, default_tools=self.tools, tools=None)

    def build_messages(self, said: tuple[Message, ...]) -> tuple[Message, ...]:
        """Return the conversation: the system text first, then what is *said* beside it.

        Raises:
            UsageError: There is nothing to send, or the user says nothing.
            TemplateError: The system text's template lacks values.
        """
        messages = said
        text = self.system.render(self.renderer) if self.system.text else ""
        if text.strip():  # a template may come to nothing
            messages = (SystemMessage(text, self.system.metadata), *messages)
        if not messages:
            msg = "there is nothing to send: give the prompt a text or messages"
            raise UsageError(msg)
        if is_blank(messages[-1]):
            msg = "the user's message is blank, and nothing was sent: give it a text or media"
            raise UsageError(msg)
        return messages

    def messages_beside_system(self) -> tuple[Message, ...]:
        """Return the conversation without the system text.

        Raises:
            TemplateError: The user's template lacks values.
        """
        user = self.user
        if not user.text and not user.media:
            return self.messages
        text = user.render(self.renderer)
        return (*self.messages, UserMessage(text, user.media, user.metadata))


async def with_system_text(
    spec: RequestSpec, said: tuple[Message, ...], runtime: Runtime
) -> RequestSpec:
    """Return *spec* with the system text that its function writes, if it has one.

    Args:
        spec: Everything else that was gathered.
        said: What is sent beside the system text.
        runtime: How the request runs.

    Raises:
        UsageError: The function returned no text.
    """
    written = spec.written_system
    if written is None:
        return spec
    arguments: list[SystemRequest] = []
    if written.wants_request:
        conversation_id = spec.advisor_params.get(CONVERSATION_ID)
        arguments = [SystemRequest(said, conversation_id, spec.tool_context, spec.advisor_params)]
    text = await runtime.invoke(written.function, *arguments)
    if not isinstance(text, str):
        name = getattr(written.function, "__name__", repr(written.function))
        msg = f"{name} must return the system text, but returned {text!r}"
        raise UsageError(msg)
    return replace(spec, system=replace(spec.system, text=text), written_system=None)
