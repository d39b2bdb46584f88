"""`NarrowingToolProvider`: offers only the tools that a decision model finds helpful."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

from chatclient._internal.checks import names
from chatclient._internal.logging import described
from chatclient.chat.messages import AssistantMessage, Message, UserMessage
from chatclient.chat.template import PromptTemplate
from chatclient.chat.tool import ToolCallback, ToolRequest
from chatclient.chat.turn import present_turn
from chatclient.chat.withheld_tool import WithheldTool, callable_tools
from chatclient.decisions.call import ask_decision
from chatclient.decisions.model import DecisionInput, DecisionModel, DecisionRequest
from chatclient.decisions.questions import check_probability
from chatclient.errors import ProviderError, ToolDefinitionError
from chatclient.extend import (
    BLOCKING,
    check_choice,
    check_number,
    check_type,
    drive,
    get_logger,
    require_placeholders,
)
from chatclient.runtime.runtime import Runtime, within_callers_deadline
from chatclient.tools.sources import Offers, ToolSource, offered_tools, resolve_sources

TOOL_QUESTION = (
    'Would the tool "{name}" help with the task in the input? The tool does this: {description}'
)
"""The question about each tool."""


class ToolQuestions:
    """Asks a decision model a yes/no question about each tool.

    Args:
        model: The decision model.
        question: The question, with `{name}` and possibly `{description}`.
        min_probability: The probability of yes from which a tool fits.
        tools_per_request: The maximum number of tools in one request; None for all in one.

    Raises:
        UsageError: A number is out of its range.
        WrongTypeError: *model* is no decision model.
        TemplateError: The question lacks `{name}`.
    """

    def __init__(
        self,
        model: DecisionModel,
        question: str,
        min_probability: float,
        tools_per_request: int | None,
    ) -> None:
        check_type("a decision model", model, DecisionModel, "of a chat model: ChatDecisionModel")
        check_probability("min_probability", min_probability)
        if tools_per_request is not None:
            check_number("tools_per_request", tools_per_request, least=1)
        self.model = model
        self._template = PromptTemplate(question, {"description": ""})
        require_placeholders(self._template, "name")
        self._min_probability = min_probability
        self._tools_per_request = tools_per_request

    async def fitting(
        self, input: DecisionInput, tools: Mapping[str, str], runtime: Runtime
    ) -> list[tuple[float, str]]:
        """Return the probabilities and names of the *tools* that fit, the best first.

        Args:
            input: What the tools are for.
            tools: The descriptions of the tools by name.
            runtime: The runtime of the request.

        Raises:
            ProviderError: The model failed, or refused to answer.
        """
        found: list[tuple[float, str]] = []
        remaining = iter(tools.items())
        while batch := dict(islice(remaining, self._tools_per_request)):
            questions = {
                name: self._template.render(name=name, description=about)
                for name, about in batch.items()
            }
            response = await ask_decision(self.model, DecisionRequest(input, questions), runtime)
            found += [(response.yes_no(name).probability, name) for name in batch]
        fitting = [pair for pair in found if pair[0] >= self._min_probability]
        return sorted(fitting, key=lambda pair: (-pair[0], pair[1]))


log = get_logger(__name__)

OnDecisionFailure = Literal["all", "none", "fail"]
"""What is offered if the decision model fails: all tools, none but those that are always offered,
or the request fails."""


@dataclass(slots=True)
class _Request:
    """The state of a request: the tools that its providers returned, and the last decision."""

    offers: Offers = field(default_factory=dict)
    asked: Any = None
    fitting: frozenset[str] = frozenset()


class NarrowingToolProvider:
    """Offers those of its tools that probably help, chosen before the model is called.

    A decision model gets the latest messages with text, up to the last one of the user, and what
    the user wrote before advisors changed it. It is asked once per turn, and again if a memory adds
    earlier messages or the user adds a message.

    Always offered are tools with `always_visible`, those named in *always_include*, and those that
    were called in the conversation, because some providers refuse calls of tools that they are not
    offered. All tools are offered if the user wrote no text.

    OpenAI (GPT from version 5) and Gemini (from version 2.5) are sent all tools, and which of them
    may be called, so that the prompt's beginning stays the same; other providers are sent those
    that are offered.

    Args:
        tools: The tools, or a provider of tools.
        model: The decision model.
        min_probability: The probability of yes from which a tool is offered.
        max_results: The maximum number of tools chosen by the model, or None.
        max_messages: The number of latest messages.
        always_include: Names of tools that are always offered.
        on_failure: `all`, `none` or `fail`: what is offered if the model fails or refuses to
            answer. The first two log a warning.
        tools_per_request: The maximum number of tools in one request to the model; None for all.
        question: The question, with `{name}` and possibly `{description}`; the input is `task` and
            `messages`.

    Raises:
        ToolDefinitionError: *tools* are no source of tools, or contain a name instead of a tool.
        UsageError: A number is out of its range, or *on_failure* is unknown.
        WrongTypeError: *model* is no decision model.
        TemplateError: The question lacks `{name}`.
    """

    dynamic = True  # memory adds messages after the first call

    def __init__(
        self,
        tools: ToolSource,
        model: DecisionModel,
        *,
        min_probability: float = 0.5,
        max_results: int | None = None,
        max_messages: int = 3,
        always_include: str | Iterable[str] = (),
        on_failure: OnDecisionFailure = "all",
        tools_per_request: int | None = None,
        question: str = TOOL_QUESTION,
    ) -> None:
        check_choice("on_failure", on_failure, OnDecisionFailure)
        check_number("max_messages", max_messages, least=1)
        if max_results is not None:
            check_number("max_results", max_results, least=1)
        self._questions = ToolQuestions(model, question, min_probability, tools_per_request)
        self._sources = []
        for source in resolve_sources([tools]):
            if isinstance(source, str):
                msg = f"{source!r} is a name; give the tool itself, or a provider of it"
                raise ToolDefinitionError(msg)
            self._sources.append(source)
        self._max_results = max_results
        self._max_messages = max_messages
        self._always_include = names(always_include)
        self._on_failure = on_failure

    @property
    def tools_to_come(self) -> tuple[ToolCallback, ...]:
        """The tools that providers offer later."""
        return tuple(c for source in self._sources for c in getattr(source, "tools_to_come", ()))

    def tool_callbacks(self, request: ToolRequest) -> list[ToolCallback]:
        """Return the tools for *request*, blocking; clients call `tools_for`."""
        tools = drive(self.tools_for(request, within_callers_deadline(BLOCKING)))
        return [*callable_tools(tools)]

    async def tools_for(self, request: ToolRequest, runtime: Runtime) -> list[ToolCallback]:
        """Return the tools for *request*, in their order; those not offered as `WithheldTool`.

        Raises:
            ProviderError: The decision model failed, and *on_failure* is `fail`.
        """
        turn = present_turn()
        current = _Request() if turn is None else turn.state.setdefault(self, _Request())
        callbacks = await offered_tools(self._sources, request, runtime, current.offers)
        task = request.original_user_message
        if task is None or not task.text.strip():
            return callbacks
        called = (
            frozenset(
                call.name
                for message in request.messages
                if isinstance(message, AssistantMessage)
                for call in message.tool_calls
            )
            | self._always_include
        )
        optional = {
            callback.definition.name: callback.definition.description
            for callback in callbacks
            if not callback.metadata.always_visible and callback.definition.name not in called
        }
        if not optional:
            return callbacks
        asked = ({"task": task.text, "messages": self._latest(request.messages)}, optional)
        if not _is_part(asked, current.asked):
            current.fitting = await self._fitting(*asked, runtime)
            current.asked = asked
        left_out = optional.keys() - current.fitting
        return [
            WithheldTool(callback) if callback.definition.name in left_out else callback
            for callback in callbacks
        ]

    async def _fitting(
        self, input: dict[str, Any], tools: dict[str, str], runtime: Runtime
    ) -> frozenset[str]:
        try:
            found = await self._questions.fitting(input, tools, runtime)
        except ProviderError as error:
            if self._on_failure == "fail":
                raise
            model, offered = self._questions.model.name, self._on_failure
            log.warning("tools not narrowed", model=model, offered=offered, error=described(error))
            return frozenset(tools if offered == "all" else ())
        return frozenset(name for _, name in found[: self._max_results])

    def _latest(self, messages: Sequence[Message]) -> list[dict[str, str]]:
        """Return role and text of the latest messages with text, up to the last of the user."""
        newest_first = (
            m for m in reversed(messages) if isinstance(m, UserMessage | AssistantMessage)
        )
        after_user = False
        kept: list[Message] = []
        for message in newest_first:
            after_user = after_user or isinstance(message, UserMessage)
            if after_user and message.text.strip():
                kept.append(message)
        latest = reversed(list(islice(kept, self._max_messages)))
        return [{"role": message.role, "text": message.text} for message in latest]


def _is_part(asked: Any, earlier: Any) -> bool:
    """Return whether *asked* is about the same input as *earlier*, and about some of its tools.

    Tools that were called in the meantime are no longer asked about.
    """
    return earlier is not None and asked[0] == earlier[0] and asked[1].keys() <= earlier[1].keys()
