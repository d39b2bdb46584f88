"""A conversation of two questions with a client that has some features, for one way of running.

The model answers with digests of what it is shown, and passes them to tools as arguments, so that
any difference of a prompt changes the answer, the effects, or both.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chatclient import (
    ChatClient,
    ChatClientBuilder,
    ChatClientRequestSpec,
    ChatModel,
    Prompt,
    ToolResponseMessage,
    Usage,
    UserMessage,
)
from chatclient.advisors import Budget
from chatclient.chain.calls_by_name import CALL_TOOL
from chatclient.chat.messages import AssistantMessage, Message
from chatclient.chat.parts import ToolCall
from chatclient.testing import Answer, ScriptedModel
from chatclient.tools import Decision, PendingTurn, ToolCallingManager

QUESTIONS = ("Question 1?", "Question 2?")
CONVERSATION = "c1"
HANDOFF_TOOL = "handoff_to_target"  # of the way in which the client is the target of a handoff

Step = Callable[[str, str], Sequence[ToolCall]]
"""Returns the calls of a round, for the number of the question and a digest of the prompt."""


@dataclass(frozen=True)
class Feature:
    """A feature, which changes a case.

    Attributes:
        name: Its name in reports.
        apply: Adds it to a case.
        group: Words; two features that share one exclude each other.
        entity: Whether the answer is asked for by `entity(...)`.
        ends: Whether it ends a turn before what other features do.
        order: Later features come later in the script of the model.
    """

    name: str
    apply: Callable[["Case"], object]
    group: str = ""
    entity: bool = False
    ends: bool = False
    order: int = 0

    @property
    def groups(self) -> list[str]:
        """The words of its group."""
        return self.group.split()


@dataclass
class Outcome:
    """What became of one conversation.

    Attributes:
        answers: The text of each answer, or the name of an error.
        effects: What tools have done.
        stored: What memories hold at the end.
        calls: The number of calls of models.
        usage: What was entered into a budget: calls and tokens.
    """

    answers: list[str] = field(default_factory=list)
    effects: list[str] = field(default_factory=list)
    stored: list[str] = field(default_factory=list)
    calls: int = 0
    usage: tuple[int, int] = (0, 0)


class Spending:
    """A store of usage, which counts in this process; see `UsageStore`."""

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()

    def add(self, key: str, amount: int, seconds: float) -> int:
        self.counters[key.split(":")[1]] += amount
        return 0

    def get(self, key: str) -> int:
        return 0

    def total(self) -> tuple[int, int]:
        """Return the numbers of calls and of tokens."""
        return self.counters["calls"], self.counters["total_tokens"]


class Case:
    """The parts of a client with *features*, and what happens to them.

    Attributes:
        folder: A folder for files.
        effects: What tools have done, in order.
        steps: What the model calls, one round after another.
        final: Makes the text of an answer of a digest.
        pauses: Whether the model pauses after the first letters of a text.
    """

    def __init__(self, features: Iterable[Feature], folder: Path) -> None:
        self.features = tuple(sorted(features, key=lambda feature: feature.order))
        self.questions: tuple[str, ...] = QUESTIONS
        self.folder = folder
        self.effects: list[str] = []
        self.steps: list[Step] = []
        self.tools: list[Any] = []
        self.advisors: list[Any] = []
        self.interceptors: list[Any] = []
        self.manager: dict[str, Any] = {}
        self.builder_changes: list[Callable[[ChatClientBuilder], ChatClientBuilder]] = []
        self.request_changes: list[Callable[[ChatClientRequestSpec], ChatClientRequestSpec]] = []
        self.stored: list[Callable[[], Iterable[Message]]] = []
        self.wrap_model: list[Callable[[ChatModel], ChatModel]] = []
        self.final: Callable[[str], str] = lambda digest: f"Answer {digest}."
        self.entity: Any = None
        self.pauses = False
        self.before_final: list[Callable[[Prompt, str], Answer | None]] = []
        self.closed: list[Callable[[], None]] = []
        self.models: list[ScriptedModel] = []
        self.model = self.scripted(self.answer)
        self.spent = Spending()
        for feature in self.features:
            feature.apply(self)

    def scripted(self, *answers: Any) -> ScriptedModel:
        """Return a model whose calls count."""
        model = ScriptedModel(*answers, usage=Usage(input_tokens=10, output_tokens=5))
        self.models.append(model)
        return model

    def builder(self) -> ChatClientBuilder:
        """Return a new builder of the client."""
        model: ChatModel = self.model
        for wrap in self.wrap_model:
            model = wrap(model)
        manager = ToolCallingManager(interceptors=self.interceptors, **self.manager)
        builder = ChatClient.builder(model).name("case").tool_calling_manager(manager)
        if self.tools:
            builder = builder.default_tools(*self.tools)
        budget = Budget(total_tokens=10**9, calls=10**6, period=10**9, store=self.spent)
        builder = builder.default_advisors(*self.advisors, budget)
        for change in self.builder_changes:
            builder = change(builder)
        return builder

    def client(self) -> ChatClient:
        """Return a new client; all clients of a case share memories and tools."""
        return self.builder().build()

    def request(self, client: Any, question: str) -> ChatClientRequestSpec:
        """Return the request for *question*; *client* may be a durable one."""
        return self.changed(client.prompt(question).conversation(CONVERSATION))

    def changed(self, request: ChatClientRequestSpec) -> ChatClientRequestSpec:
        """Return *request* with the settings of the features."""
        for change in self.request_changes:
            request = change(request)
        return request

    def decisions(self, turn: PendingTurn) -> dict[str, Decision]:
        """Return the decisions about the calls of *turn*: what is external gets a result."""
        external = turn.external_calls
        return {
            id: Decision.answered(f"located {call.id}") if id in external else Decision(True)
            for id, call in turn.to_decide().items()
        }

    def answer(self, prompt: Prompt) -> Answer:
        """Return the next answer of the model: the next step of the script, or a text."""
        answer = self._next(prompt)
        if self.pauses and isinstance(answer, str):
            return [answer[:3], 0.2, answer[3:]]
        return answer

    def _next(self, prompt: Prompt) -> Answer:
        number, answered = _progress(prompt.messages)
        digest = digest_of(prompt)
        if prompt.options.tool_callbacks and prompt.options.tool_choice != "none":
            for step in self.steps:
                missing = [call for call in step(number, digest) if call.id not in answered]
                if missing:
                    return _as_offered(missing, prompt)
        for make in self.before_final:
            given = make(prompt, digest)
            if given is not None:
                return given
        return self.final(digest)

    def outcome(self, answers: Sequence[str]) -> Outcome:
        """Return what became of the conversation, with the texts of its *answers*."""
        read = [message for each in self.stored for message in each()]
        stored = [described(message) for message in read if not hands_over(message)]
        calls = sum(len(model.prompts) for model in self.models)
        return Outcome(list(answers), sorted(self.effects), stored, calls, self.spent.total())

    def close(self) -> None:
        """Release what features have opened."""
        for close in self.closed:
            close()


def _as_offered(calls: Sequence[ToolCall], prompt: Prompt) -> list[ToolCall]:
    """Return *calls* as the tools of *prompt* permit: those that it does not offer by name."""
    offered = {tool.definition.name for tool in prompt.options.tool_callbacks or ()}
    if CALL_TOOL not in offered:
        return [*calls]
    return [
        call
        if call.name in offered
        else ToolCall(
            call.id, CALL_TOOL, f'{{"name": "{call.name}", "arguments": {call.arguments}}}'
        )
        for call in calls
    ]


def _progress(messages: Sequence[Message]) -> tuple[str, set[str]]:
    """Return the number of the last question, and the ids of calls that are answered since."""
    number, answered = "0", set[str]()
    for message in messages:
        if isinstance(message, UserMessage) and message.text.startswith("Question "):
            number, answered = message.text[9], set()
        elif isinstance(message, ToolResponseMessage):
            answered.update(response.id for response in message.responses)
    return number, answered


def text_of(prompt: Prompt) -> str:
    """Return the text of the last user message of *prompt*."""
    message = prompt.user_message
    assert message is not None
    return message.text


def digest_of(prompt: Prompt) -> str:
    """Return a digest of what a model is shown."""
    shown = [described(message) for message in prompt.messages if not hands_over(message)]
    options = prompt.options
    tools = sorted(options.tool_callbacks or (), key=lambda tool: tool.definition.name)
    shown += [json.dumps(tool.definition.to_json()) for tool in tools]
    shown += [repr(options.tool_choice), repr(options.temperature), repr(options.output_schema)]
    return hashlib.sha256("\n".join(shown).encode()).hexdigest()[:8]


def hands_over(message: Message) -> bool:
    """Return whether *message* is the handoff of the way with one, or its result."""
    match message:
        case AssistantMessage(tool_calls=(ToolCall(name=name),)):
            return name == HANDOFF_TOOL
        case ToolResponseMessage(responses=(response,)):
            return response.name == HANDOFF_TOOL
    return False


def described(message: Message) -> str:
    """Return what a model sees of *message*."""
    parts = [message.role, message.text]
    match message:
        case AssistantMessage():
            parts += [f"{call.id} {call.name}{call.arguments}" for call in message.tool_calls]
        case ToolResponseMessage(responses=responses):
            parts += [
                f"{each.id} {each.name}={each.data} {each.is_error} {len(each.media)}"
                for each in responses
            ]
        case UserMessage(media=media):
            parts.append(str(len(media)))
    return " | ".join(parts)
