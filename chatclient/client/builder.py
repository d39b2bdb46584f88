"""`ChatClientBuilder`: collects the default settings of a client."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, Unpack

from chatclient._internal.checks import (
    check_callable,
    check_choice,
    check_method,
    missing_attribute,
)
from chatclient.chain.chain import Advisor
from chatclient.chat.messages import Media, Message
from chatclient.chat.model import ChatModel
from chatclient.chat.options import ChatOptions, OptionValues
from chatclient.chat.template import TemplateRenderer
from chatclient.client.dropped import warn_if_dropped
from chatclient.client.options import with_options
from chatclient.client.request_settings import (
    RequestSettings,
    advisors_hint,
    merge_params,
    text_hint,
)
from chatclient.client.shared_parts import SharedParts, model_of
from chatclient.runtime.observation import Observer
from chatclient.tools.duplicates import DuplicatePolicy
from chatclient.tools.execution.manager import ToolCallingManager, check_manager
from chatclient.tools.execution.toolset import ToolCallbackResolver
from chatclient.tools.sources import ToolSource

if TYPE_CHECKING:  # the first imports this one; the second is only loaded if used
    from chatclient.client.client import ChatClient
    from chatclient.client.options import SystemFunction


MEMORY_HINT = "it is in an advisor: .default_advisors(MessageChatMemoryAdvisor(memory))"
"""The hint for attribute names that end in `memory`."""


class ChatClientBuilder:
    """Collects the settings of a client; immutable, each method returns a new builder.

    A statement that makes a builder and drops it emits a `RuntimeWarning`.
    """

    def __init__(self, shared: SharedParts, settings: RequestSettings) -> None:
        self._shared = shared
        self._stored = settings
        self._used = False

    @property
    def _settings(self) -> RequestSettings:
        """The settings; each method reads them first, also one that raises."""
        self._used = True
        return self._stored

    @text_hint
    def default_system(
        self,
        text: "str | SystemFunction | None" = None,
        *,
        params: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Self:
        """Set the system text of all requests; see `ChatClientRequestSpec.system`."""
        return self._with(self._settings.with_system(text, params, metadata))

    @text_hint
    def default_user(
        self,
        text: str | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        media: Media | Iterable[Media] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> Self:
        """Set the user text of requests without one."""
        return self._with(self._settings.with_user(text, params, media, metadata))

    def default_messages(self, *messages: Message | Iterable[Message]) -> Self:
        """Add messages at the start of each conversation."""
        return self._with(self._settings.with_messages(messages))

    def default_options(
        self, options: ChatOptions | None = None, /, **values: Unpack[OptionValues]
    ) -> Self:
        """Set options of all requests; see `ChatClientRequestSpec.options`.

        Common options that a model does not take are dropped, with one line in the log; those of
        another provider are refused by `build`.
        """
        return self._with(with_options(self._shared, self._settings, options, values))

    def default_deadline(self, seconds: float | timedelta) -> Self:
        """Limit the duration of each request; see `ChatClientRequestSpec.deadline`.

        Raises:
            UsageError: *seconds* is not a number or `timedelta` greater than 0.
        """
        return self._with(self._settings.with_deadline(seconds))

    def default_tools(self, *sources: ToolSource) -> Self:
        """Add tools for requests that set no tools.

        Raises:
            ToolDefinitionError: A source contains no tool, or a tool is invalid.
        """
        return self._with(self._settings.with_default_tools(sources))

    def default_tool_context(
        self, context: Mapping[str, Any] | None = None, /, **more: Any
    ) -> Self:
        """Add values for the tools of all requests, which the model does not see."""
        return self._with(
            self._settings.with_tool_context(merge_params("a tool context", context, more))
        )

    @advisors_hint
    def default_advisors(
        self,
        *advisors: Advisor | Iterable[Advisor],
        params: Mapping[str, Any] | None = None,
    ) -> Self:
        """Add advisors for all requests."""
        return self._with(self._settings.with_advisors(advisors, params))

    def default_advisor_params(
        self, params: Mapping[str, Any] | None = None, /, **more: Any
    ) -> Self:
        """Add values to the advisor context of all requests."""
        return self._with(self._settings.with_advisors((), merge_params("params", params, more)))

    def default_template_renderer(self, renderer: TemplateRenderer) -> Self:
        """Set the function that fills the placeholders of system and user texts."""
        settings = self._settings
        check_callable("a template renderer", renderer, takes=("template", "values"))
        return self._with(replace(settings, renderer=renderer))

    def model(self, model: ChatModel | str) -> Self:
        """Replace the model; see `ChatClientRequestSpec.model`.

        Args:
            model: A chat model, or its name; see `ChatClient.builder`.

        Raises:
            UsageError: The provider in the name is unknown, or *model* is not a model.
        """
        settings = self._settings
        shared = replace(self._shared, model=model_of(model))
        return type(self)(shared, settings.without_model_name().with_options_as_defaults())

    def tool_calling(self, enabled: bool) -> Self:  # noqa: FBT001 - reads as a fact
        """Set whether requests run tools; if not, they return the tool calls.

        Raises:
            WrongTypeError: *enabled* is not a bool.
        """
        return self._with(self._settings.with_tool_calling(enabled))

    def tool_calling_manager(self, manager: ToolCallingManager) -> Self:
        """Set the manager that runs the tools of all requests.

        Raises:
            UsageError: *manager* is not a `ToolCallingManager`, or it overrides a method that
                requests do not call.
        """
        settings = self._settings
        check_manager(manager)
        return type(self)(replace(self._shared, manager=manager), settings)

    def tool_callback_resolver(self, resolver: ToolCallbackResolver) -> Self:
        """Set the resolver that finds tools by name."""
        settings, hint = self._settings, "put tools into a StaticToolCallbackResolver(...)"
        check_method("a resolver of tools", resolver, "resolve", hint)
        return type(self)(replace(self._shared, resolver=resolver), settings)

    def name(self, name: str) -> Self:
        """Set the name of the client: in logs, spans and trails, and as a tool.

        Raises:
            UsageError: The name is blank, or not a string.
        """
        settings = self._settings
        return type(self)(self._shared.with_name(name), settings)

    def observers(self, *observers: Observer | Iterable[Observer]) -> Self:
        """Add observers of the operations of all requests, such as a `Telemetry`.

        Raises:
            WrongTypeError: One of them is not an observer.
        """
        settings = self._settings
        return type(self)(self._shared.with_observers(observers), settings)

    def duplicate_tools(self, policy: DuplicatePolicy) -> Self:
        """Set what to do if several tools have the same name: raise, or use one of them.

        Raises:
            UsageError: *policy* is not a known value.
        """
        settings = self._settings
        check_choice("duplicate_tools", policy, DuplicatePolicy)
        return type(self)(replace(self._shared, duplicate_tools=policy), settings)

    def clone(self) -> Self:
        """Return a builder with the same settings."""
        return type(self)(self._shared, self._settings)

    def build(self) -> "ChatClient":
        """Return the client, without opening connections.

        Raises:
            UsageError: Two advisors run the tool loop.
            DuplicateToolError: Two default tools have the same name.
            UnsupportedOptionError: A default option is one of another provider's models.
        """
        from chatclient.client.client import ChatClient  # noqa: PLC0415 - it imports this module

        self._shared.model.options.merge(self._settings.options)  # as defaults they are dropped
        return ChatClient(self._shared, self._settings.with_options_as_defaults())

    def _with(self, settings: RequestSettings) -> Self:
        return type(self)(self._shared, settings)

    def __del__(self) -> None:
        if not self.__dict__.get("_used", True):
            warn_if_dropped("a ChatClientBuilder was made and never built: it changes no client")

    def __repr__(self) -> str:
        return f"ChatClientBuilder({self._shared.label})"

    if not TYPE_CHECKING:  # hidden from type checkers, which would accept any attribute

        def __getattr__(self, name: str) -> Any:
            from chatclient.client.client import ChatClient  # noqa: PLC0415 - it imports this module
            from chatclient.client.request import ChatClientRequestSpec  # noqa: PLC0415 - as above

            self._used = True  # the error refers to it
            hint = ""
            if hasattr(ChatClient, name):
                hint = "; call .build() first"
            elif hasattr(type(self), f"default_{name}"):
                hint = f"; here it is .default_{name}(...), for all requests"
            elif hasattr(ChatClientRequestSpec, name):
                hint = f"; a request has: client.prompt(...).{name}(...)"
            elif name.endswith("memory"):
                hint = f"; {MEMORY_HINT}"
            elif (option := name.removeprefix("default_")) in OptionValues.__annotations__:
                hint = f"; it is an option: .default_options({option}=...)"
            raise missing_attribute(self, name, hint)
