"""`RequestSettings`: the immutable settings that the fluent methods collect."""

import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Self

from chatclient._internal import checks
from chatclient._internal.checks import check_type
from chatclient._internal.frozen import EMPTY, merged
from chatclient._internal.parameters import with_hint
from chatclient._internal.roles import ADVISOR, role_of
from chatclient.chain.chain import Advisor, is_advisor, name_of, needs_conversation, order_of
from chatclient.chat.messages import Media, Message, SystemMessage, UserMessage, flat_messages
from chatclient.chat.options import NO_OPTIONS, ChatOptions, OptionValues
from chatclient.chat.parts import as_tuple
from chatclient.chat.prompt import is_blank
from chatclient.chat.template import (
    DEFAULT_RENDERER,
    PromptTemplate,
    TemplateRenderer,
    render_checked,
)
from chatclient.chat.tool import CONVERSATION_ID
from chatclient.chat.turn import NEW_TURN, TurnSettings
from chatclient.errors import UsageError, WrongTypeError
from chatclient.runtime.threads import is_of_library
from chatclient.tools.sources import Resolved, ToolSource, resolve_sources

if TYPE_CHECKING:  # only loaded with such a function
    from chatclient.client.options import SystemFunction, SystemTextFunction


def _of_a_text(name: str) -> str:
    """Return a hint for an unknown parameter of a method that sets a text."""
    if name in OptionValues.__annotations__:
        return f"it is an option: .options({name}=...)"
    return f"values for a template are given together: params={{{name!r}: ...}}"


def _of_advisors(name: str) -> str:
    """Return a hint for an unknown parameter of a method that sets advisors."""
    if name.endswith("conversation_id"):
        return ".conversation(id) says which conversation a request belongs to"
    return f"values for advisors are given together: params={{{name!r}: ...}}"


text_hint, advisors_hint = with_hint(_of_a_text), with_hint(_of_advisors)


@dataclass(frozen=True, slots=True, eq=False)
class TextSettings:
    """The settings of the system or user message.

    Attributes:
        text: The text.
        params: Values for placeholders, including those of earlier texts.
        media: Media of the message.
        metadata: Metadata of the message.
        is_template: Whether params were given for this text.
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
        """Return a copy with another text, if given, and everything else added.

        Raises:
            UsageError: The text is blank.
        """
        check_text(text, str, NoneType)
        if text is not None and not text.strip():
            msg = "the text is blank; leave it out to keep the default one"
            raise UsageError(msg)
        for what, given in (("params", params), ("metadata", metadata)):
            if given:
                check_type(what, given, Mapping)
        return type(self)(
            self.text if text is None else text,
            merged(self.params, params) if params else self.params,
            (*self.media, *media),
            merged(self.metadata, metadata) if metadata else self.metadata,
            params is not None or (self.is_template and text is None),
        )

    def render(self, renderer: TemplateRenderer) -> str:
        """Return the text, with placeholders replaced if it is a template."""
        return render_checked(renderer, self.text, self.params) if self.is_template else self.text


def merge_params(
    name: str, given: Mapping[str, Any] | None, more: Mapping[str, Any]
) -> dict[str, Any]:
    """Return *given* merged with *more*, which takes precedence.

    Raises:
        WrongTypeError: *given* is not a mapping; the error calls it *name*.
    """
    if given is not None:
        check_type(name, given, Mapping, "pass a mapping, or values by name")
    return {**(given or {}), **more}


def check_text(given: object, *kinds: type) -> None:
    """Check that *given*, usually a text, has one of the types *kinds*.

    Raises:
        WrongTypeError: It does not; the message contains the fix.
    """
    if isinstance(given, kinds):
        return
    match given:
        case PromptTemplate():
            msg = "a template has to be filled first: pass template.render(...)"
        case Path():
            msg = f"a path is not a text: pass Path({str(given)!r}).read_text()"
        case _:
            role = role_of(given)
            msg = f"{given!r} is not a text{f'; {role}' if role else ''}"
    raise WrongTypeError(msg)


def _check_advisor(given: Any) -> None:
    """Check that *given* is an advisor with a valid order.

    Raises:
        WrongTypeError: It is not; the message contains the fix.
    """
    role = role_of(given)
    if is_advisor(given) and (role is None or role.takes == ADVISOR):
        check_type(f"the order of advisor {name_of(given)!r}", order_of(given), (int, float))
        return
    if isinstance(given, type):
        hint = f"make one: {given.__name__}(...)"
    elif role is None or callable(given):
        hint = f"those are called with ({', '.join(ADVISOR)}){f'; {role}' if role else ''}"
    else:
        hint = str(role)
    msg = f"{given!r} is not an advisor; {hint}"
    raise WrongTypeError(msg)


def _with_text_id(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return *params* with the conversation id converted to a string, for example a UUID."""
    given = params.get(CONVERSATION_ID)
    if given is None or isinstance(given, str):
        return params
    return merged(params, {CONVERSATION_ID: str(given)})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestSettings:
    """The settings of a request, or the default settings of a client.

    Attributes:
        system: The system text.
        system_function: Computes the system text when the request runs, instead of a text.
        user: The user text and media.
        messages: The messages between system and user message.
        options: Options over those of the model.
        default_tools: The tools of requests without `tools`.
        tools: The tools of the request, or None.
        tool_context: Values for the tools.
        advisors: The advisors, in the order in which they were added.
        advisor_params: The initial context of the advisors.
        renderer: Fills the placeholders of templates.
        tool_calling: Whether tools are run.
        deadline: The maximum duration of a request in seconds, not a point in time; or None.
        turn: How the request gets its turn.
    """

    system: TextSettings = TextSettings()
    system_function: "SystemTextFunction | None" = None
    user: TextSettings = TextSettings()
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
    turn: TurnSettings = NEW_TURN

    def with_system(
        self,
        text: "str | SystemFunction | None",
        params: Mapping[str, Any] | None,
        metadata: Mapping[str, Any] | None,
    ) -> Self:
        """Return a copy with a system text, or more params for the present one."""
        if not callable(text):
            function = self.system_function if text is None else None
            system = self.system.updated(text, params, (), metadata)
        else:
            from chatclient.client.options import (  # noqa: PLC0415 - see above
                SystemTextFunction,
            )

            function = SystemTextFunction.of(text)
            system = replace(self.system, text="", is_template=False)
            system = system.updated(None, params, (), metadata)
        return replace(self, system=system, system_function=function)

    def with_user(
        self,
        text: str | None,
        params: Mapping[str, Any] | None,
        media: Media | Iterable[Media],
        metadata: Mapping[str, Any] | None,
    ) -> Self:
        """Return a copy with a user text, or more params and media for the present one."""
        # Not a string or bytes: the error should show it, and not its first element.
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
        """Return a copy with more messages, given singly or in collections."""
        return replace(self, messages=(*self.messages, *flat_messages(messages)))

    def with_options(self, options: ChatOptions) -> Self:
        """Return a copy with *options* merged into the present ones."""
        present = self.options
        return replace(self, options=options if present is None else present.merge(options))

    def with_options_of(self, kind: type[ChatOptions]) -> Self:
        """Return a copy with the options as *kind*, without defaults that it does not have.

        Raises:
            UnsupportedOptionError: One that is no default is of another provider.
        """
        if self.options is None or isinstance(self.options, kind):
            return self
        return replace(self, options=kind().merge(self.options))

    def with_options_as_defaults(self) -> Self:
        """Return a copy whose options are defaults: a model that does not take one drops it."""
        if self.options is None:
            return self
        return replace(self, options=self.options.as_defaults())

    def without_model_name(self) -> Self:
        """Return a copy without the `model` option, for use with another model."""
        if self.options is None or self.options.model is None:
            return self
        return replace(self, options=self.options.mutate(model=None))

    def with_turn(self, turn: TurnSettings, messages: tuple[Message, ...]) -> Self:
        """Return a copy for a *turn* whose *messages* include system and user message."""
        return replace(
            self,
            system=TextSettings(),
            system_function=None,
            user=TextSettings(),
            messages=messages,
            turn=turn,
        )

    def with_deadline(self, seconds: float | timedelta) -> Self:
        """Return a copy with a deadline."""
        return replace(self, deadline=checks.seconds("a deadline", seconds))

    def with_tool_calling(self, enabled: bool) -> Self:  # noqa: FBT001 - as in the builder
        """Return a copy in which tools are run, or not."""
        check_type("tool_calling", enabled, bool)  # the string "false" is truthy
        return replace(self, tool_calling=enabled)

    def with_default_tools(self, sources: Iterable[ToolSource]) -> Self:
        """Return a copy with more default tools."""
        return replace(self, default_tools=(*self.default_tools, *resolve_sources(sources)))

    def with_tools(self, sources: Iterable[ToolSource], *, keep_defaults: bool) -> Self:
        """Return a copy with more tools, which replace the default tools or are added to them."""
        before = self.tools or ()
        if keep_defaults:
            missing = (d for d in self._all_defaults if not any(d is each for each in before))
            before = (*missing, *before)
        return replace(self, tools=(*before, *resolve_sources(sources)))

    @property
    def _all_defaults(self) -> tuple[Resolved, ...]:
        """The default tools, or else the tools in the options, and the names in the options."""
        options = self.options or NO_OPTIONS
        return (*(self.default_tools or options.tool_callbacks or ()), *(options.tool_names or ()))

    def with_tool_context(self, context: Mapping[str, Any]) -> Self:
        """Return a copy with more tool context."""
        return replace(self, tool_context=merged(self.tool_context, context))

    def with_advisors(
        self, advisors: Iterable[Advisor | Iterable[Advisor]], params: Mapping[str, Any] | None
    ) -> Self:
        """Return a copy with more advisors, and more params for all of them.

        Raises:
            WrongTypeError: One of them is not an advisor, or *params* is not a mapping.
        """
        if params:
            check_type("params", params, Mapping)
        flat: list[Advisor] = []
        for advisor in advisors:
            # A callable is one advisor, even if it is iterable like a pydantic model.
            flat.extend((advisor,) if callable(advisor) else as_tuple(advisor))
        for advisor in flat:
            _check_advisor(advisor)
        return replace(
            self,
            # The same tuple if nothing is added, so that the pipeline reuses the built chain.
            advisors=(*self.advisors, *flat) if flat else self.advisors,
            advisor_params=merged(self.advisor_params, _with_text_id(params or EMPTY)),
        )

    @property
    def tool_sources(self) -> tuple[Resolved, ...]:
        """The tools to offer: those of the request, or the defaults."""
        return self.default_tools if self.tools is None else self.tools

    @property
    def lacks_conversation(self) -> bool:
        """Whether a memory advisor needs a conversation id and there is none."""
        named = CONVERSATION_ID in self.advisor_params
        return not named and any(map(needs_conversation, self.advisors))

    def has_same_options(self, other: "RequestSettings") -> bool:
        """Return whether options and tools are identical to those of *other*."""
        return (
            self.options is other.options
            and self.tool_context is other.tool_context
            and self.tools is other.tools  # an empty tuple differs from None
            and self.default_tools is other.default_tools
            and self.tool_calling == other.tool_calling
        )

    def as_defaults(self) -> Self:
        """Return a copy as defaults of a client, with the tools as default tools."""
        settings = self.with_options_as_defaults()
        if self.tools is None:
            return settings
        return replace(settings, default_tools=self.tools, tools=None)

    @property
    def has_text(self) -> bool:
        """Whether there is a system text or function, a user text or media."""
        user = self.user
        return bool(self.system.text or self.system_function or user.text or user.media)

    @property
    def renderer_may_block(self) -> bool:
        """Whether templates are rendered by a function of the application."""
        return not is_of_library(self.renderer)

    def prepend_system_message(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Return *messages* after the system message, if there is one.

        Raises:
            UsageError: The result is empty, or ends with a blank user message.
            TemplateError: Values for the system template are missing.
        """
        text = self.system.render(self.renderer) if self.system.text else ""
        if text.strip():  # a rendered template may be blank
            messages = (SystemMessage(text, self.system.metadata), *messages)
        if not messages:
            msg = "there is nothing to send: give the prompt a text or messages"
            raise UsageError(msg)
        if is_blank(messages[-1]):
            msg = "the user's message is blank, and nothing was sent: give it a text or media"
            raise UsageError(msg)
        return messages

    def messages_without_system(self) -> tuple[Message, ...]:
        """Return the messages of the request without the system message.

        Raises:
            TemplateError: Values for the user template are missing.
        """
        user = self.user
        if not user.text and not user.media:
            return self.messages
        text = user.render(self.renderer)
        return (*self.messages, UserMessage(text, user.media, user.metadata))
