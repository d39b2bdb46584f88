"""Random advisor chains, random answers of the model and random turns, in all four modes.

In every conversation, the stored messages and the prompts are valid for every provider, memory
equals the conversation, all four modes agree, and no work continues after a turn.
"""

import asyncio
import itertools
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from hypothesis import given, settings, strategies as st

from chatclient import (
    AssistantMessage,
    ChatClient,
    ChatClientRequest,
    Message,
    Prompt,
    UserMessage,
    tool,
)
from chatclient.advisors.context_window import ContextWindowAdvisor
from chatclient.advisors.guardrails.advisors import (
    GuardrailResult,
    InputGuardrailAdvisor,
    OutputGuardrailAdvisor,
)
from chatclient.advisors.guardrails.safe_guard import SafeGuardAdvisor
from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor, PromptChatMemoryAdvisor
from chatclient.advisors.memory.session import SessionMemoryAdvisor
from chatclient.advisors.memory.vector_store import VectorStoreChatMemoryAdvisor
from chatclient.advisors.retrieval.advisor import ReReadingAdvisor
from chatclient.advisors.structured_output import StructuredOutputValidationAdvisor
from chatclient.advisors.tool_loop.advisor import Steering
from chatclient.advisors.tool_search.advisor import ToolSearchToolCallingAdvisor
from chatclient.chain.chain import MEMORY_ORDER, TOOL_CALLING_ORDER
from chatclient.chat.messages import Reasoning, ToolResponseMessage
from chatclient.chat.tool import ToolContext
from chatclient.chat.turn import TURN_KEY
from chatclient.errors import ChatClientError, OverloadedError
from chatclient.memory import (
    InMemorySessionRepository,
    MessageWindowChatMemory,
    SessionChatMemory,
    SessionService,
    SqlChatMemoryRepository,
    SummarizingChatMemory,
    TurnCountTrigger,
    TurnWindow,
    Window,
    WindowChatMemory,
    conversation_problems,
)
from chatclient.providers.composite import FallbackChatModel
from chatclient.retrieval import InMemoryVectorStore
from chatclient.testing import Answer, Mode, ScriptedModel, call
from chatclient.tools import (
    PendingTurn,
    ToolApproval,
    ToolCallingManager,
    ToolFailurePolicy,
    ToolLimits,
)
from tests.modes.test_retrieval import WordEmbedding
from tests.support.examples import examples
from tests.support.waiting import settled

MODES: tuple[Mode, ...] = get_args(Mode)
OUTSIDE, INSIDE = MEMORY_ORDER, TOOL_CALLING_ORDER + 100

# --- scenarios ------------------------------------------------------------------------------

Said = Literal["good", "bad", "", " ", "thought", "busy", "cut"]
Called = Literal["look", "fail", "tell", "pay", "ask", "unknown", "malformed"]
Step = Said | tuple[Called, ...]

steps: st.SearchStrategy[Step] = st.one_of(
    st.sampled_from(get_args(Said)),
    st.lists(st.sampled_from(get_args(Called)), min_size=1, max_size=3).map(tuple),
)


@dataclass(frozen=True)
class Turn:
    """Input of a turn, the steps of the model, and the decisions of the user."""

    question: Literal["text", "prefill", "repeated"]
    model: tuple[Step, ...]
    decisions: tuple[Literal["approve", "deny", "leave"], ...]
    stored: bool
    keyed: bool
    cut: int


turns = st.builds(
    Turn,
    st.sampled_from(["text", "text", "prefill", "repeated"]),
    st.lists(steps, max_size=4).map(tuple),
    st.tuples(*[st.sampled_from(["approve", "deny", "leave"])] * 3),
    st.booleans(),
    st.booleans(),
    st.integers(0, 30),
)


@dataclass(frozen=True)
class Chain:
    """The memories and advisors of a client."""

    memories: tuple[tuple[str, int], ...]
    advisors: frozenset[str]
    tool_messages: bool
    limit: str | None


MEMORIES = ["window", "prompt", "summary", "sql", "session", "compacted"]
ADVISORS = [
    *("retry outside", "reprompt outside", "retry", "reprompt", "forbidden", "hide", "hide inside"),
    *("re-read", "steer", "valid", "vector", "vector inside", "search", "room", "fall back"),
    *("side by side", "raise"),
]
chains = st.builds(
    Chain,
    st.lists(
        st.tuples(st.sampled_from(MEMORIES), st.sampled_from([OUTSIDE, OUTSIDE + 1, INSIDE])),
        min_size=1,
        max_size=2,
        unique_by=lambda memory: memory[0],
    ).map(tuple),
    st.frozensets(st.sampled_from(ADVISORS), max_size=4),
    st.booleans(),
    st.sampled_from([None, None, "raise", "partial", "final_answer", "tell_model"]),
)

# --- a conversation in one of the modes -----------------------------------------------------


def response_of(step: Step, number: int) -> Any:
    """Return the response of the model."""
    match step:
        case "thought":
            return AssistantMessage(reasoning=Reasoning("hm"))
        case "busy":
            return OverloadedError("busy")
        case "cut":
            return ["half an ans", OverloadedError("cut")]
        case "good" | "bad":
            return f"{step} {number}"
        case str():
            return step
        case _:
            return [call_of(name, f"{at}" if at else None) for at, name in enumerate(step)]


def call_of(name: Called, suffix: str | None) -> Any:
    """Return a call, possibly with the id of an earlier round."""
    id = f"call_{name}{suffix or ''}"
    return call(
        "look" if name == "malformed" else name, "?" if name == "malformed" else "{}", id=id
    )


class Model(ScriptedModel):
    """Returns the steps of a turn, then text; checks that its prompts are valid."""

    def __init__(self) -> None:
        super().__init__(self.answer)
        self.script: list[Step] = []
        self.count = 0
        self.problems: list[Any] = []

    def answer(self, prompt: Prompt) -> Answer:
        self.count += 1
        problems = conversation_problems(prompt.messages)
        self.problems += [(problem, prompt.messages) for problem in problems]
        step = self.script.pop(0) if self.script else "good"
        if prompt.options.tool_choice == "none" and not isinstance(step, str):
            step = "good"
        answer: Answer = response_of(step, self.count)
        return answer


@dataclass
class Conversation:
    """A conversation in one mode."""

    chain: Chain
    mode: Mode
    model: Model = field(default_factory=Model)
    stores: list[Callable[[], Sequence[Message]]] = field(default_factory=list)
    closing: list[Any] = field(default_factory=list)
    log: list[Any] = field(default_factory=list)
    steering: Steering | None = None
    last: tuple[Message, ...] = ()

    def __post_init__(self) -> None:
        self.vectors = InMemoryVectorStore(WordEmbedding())
        extras = self.chain.advisors
        model: Any = self.model
        if "fall back" in extras:
            model = FallbackChatModel(ScriptedModel(lambda _: OverloadedError("down")), self.model)
        policy = ToolFailurePolicy(
            raise_on=LookupError if "raise" in extras else (), max_failures=2
        )
        on_exceeded: Any = self.chain.limit
        limits = ToolLimits(max_rounds=3, on_exceeded=on_exceeded) if on_exceeded else ToolLimits()
        manager = ToolCallingManager(
            interceptors=[ToolApproval(lambda invocation: invocation.tool_call.name == "pay")],
            exception_processor=policy,
            limits=limits,
            blocking_concurrency=2 if "side by side" in extras else 1,
        )
        advisors = [*map(self.memory, self.chain.memories), *self.advisors()]
        self.client = (
            ChatClient.builder(model)
            .default_system("Be brief.")
            .default_tools(*self.tools())
            .default_advisors(*advisors)
            .tool_calling_manager(manager)
            .build()
        )

    def memory(self, place: tuple[str, int]) -> Any:
        kind, order = place
        more: Any = {"order": order, "tool_messages": self.chain.tool_messages}
        if kind in ("session", "compacted"):
            service = SessionService(InMemorySessionRepository())
            self.stores.append(lambda: service.messages("c"))
            compaction: Any = {"trigger": TurnCountTrigger(2), "strategy": TurnWindow(1)}
            sessions = SessionChatMemory(service, **compaction if kind == "compacted" else {})
            return SessionMemoryAdvisor(sessions, **more)
        memory: WindowChatMemory | SummarizingChatMemory
        if kind == "summary":
            summariser = ScriptedModel(lambda _: "It was said.")
            few: Any = {"trigger": Window.messages(6), "window": Window.messages(3)}
            memory = SummarizingChatMemory(summariser, **few)
        elif kind == "sql":
            repository = SqlChatMemoryRepository("sqlite://")
            self.closing.append(repository)
            memory = MessageWindowChatMemory(repository)
        else:
            memory = MessageWindowChatMemory(max_messages=4)
        self.stores.append(lambda: memory.repository.find_by_conversation_id("c"))
        advisor = PromptChatMemoryAdvisor if kind == "prompt" else MessageChatMemoryAdvisor
        return advisor(memory, **more)

    def advisors(self) -> list[Any]:
        def judge(result: GuardrailResult) -> Any:
            return lambda answer: None if "good" in answer.text else result

        retry = judge(GuardrailResult.retry("bad"))
        reprompt = judge(GuardrailResult.reprompt("bad", "Better!"))

        def hide(request: ChatClientRequest) -> GuardrailResult:
            message = request.prompt.user_message
            assert message is not None
            return GuardrailResult.success(message.text.replace("secret", "***"))

        known: dict[str, Callable[[], Any]] = {
            "retry outside": lambda: OutputGuardrailAdvisor(retry, order=OUTSIDE - 10),
            "reprompt outside": lambda: OutputGuardrailAdvisor(reprompt, order=OUTSIDE - 10),
            "retry": lambda: OutputGuardrailAdvisor(retry),
            "reprompt": lambda: OutputGuardrailAdvisor(reprompt),
            "forbidden": lambda: SafeGuardAdvisor("bad"),
            "hide": lambda: InputGuardrailAdvisor(hide),
            "hide inside": lambda: InputGuardrailAdvisor(hide, order=OUTSIDE + 5),
            "re-read": ReReadingAdvisor,
            "valid": lambda: StructuredOutputValidationAdvisor(str),
            "vector": lambda: VectorStoreChatMemoryAdvisor(self.vectors),
            "vector inside": lambda: VectorStoreChatMemoryAdvisor(self.vectors, order=0),
            "search": lambda: ToolSearchToolCallingAdvisor(threshold=1),
            "room": lambda: ContextWindowAdvisor(1 << 20),
        }
        return [make() for name, make in known.items() if name in self.chain.advisors]

    def tools(self) -> list[Any]:
        @tool
        def look() -> str:
            """Look it up."""
            steering = self.steering if "steer" in self.chain.advisors else None
            if steering is not None and not steering.unread:  # stay two messages
                steering.send("Mind this.")
            return "seen"

        @tool
        def fail() -> str:
            """Fail."""
            raise LookupError("not there")

        @tool(return_direct=True)
        def report() -> str:
            """Tell it."""
            return "told"

        @tool
        async def pay() -> str:
            """Pay it."""
            return "paid"

        @tool
        def ask(context: ToolContext) -> str:
            """Ask."""
            return "answered"

        return [look, fail, report, pay, ask]

    @property
    def rewrites(self) -> bool:
        """Whether a memory replaces messages by shorter ones."""
        return not {"summary", "compacted"}.isdisjoint(kind for kind, _ in self.chain.memories)

    def request(self, turn: Turn, number: int) -> Any:
        text = f"secret question {number}"
        match turn.question:
            case "prefill":
                request = self.client.prompt([UserMessage(text), AssistantMessage("Well, ")])
            # With a guardrail inside a memory, messages() differ from the stored ones.
            case "repeated" if self.last and "hide inside" not in self.chain.advisors:
                request = self.client.prompt([*self.last, UserMessage(text)])
            case _:
                request = self.client.prompt(text)
        if turn.keyed:
            request = request.advisor_params({TURN_KEY: f"turn {number}"})
        return request.conversation("c")

    def sent(self, request: Any) -> Any:
        """Return *request* as sent, with the settings of this conversation."""
        self.steering = Steering()
        return request.advisors(self.steering) if "steer" in self.chain.advisors else request

    async def ask(self, request: Any) -> Any:
        """Return the answer, or the error that the turn came to."""
        try:
            match self.mode:
                case "call":
                    answer = request.call()
                    answer.chat_response()
                case "acall":
                    answer = await request.acall()
                case "stream":
                    answer = request.stream()
                    list(answer.events())
                case "astream":
                    answer = request.astream()
                    [_ async for _ in answer.events()]
        except ChatClientError as error:
            return error
        except LookupError as error:
            return error
        return answer

    async def leave(self, request: Any, after: int) -> None:
        """Start a turn and abandon it."""
        with suppress(ChatClientError, LookupError, asyncio.CancelledError):
            match self.mode:
                case "stream":
                    with closing(request.stream().events()) as events:
                        for _ in itertools.islice(events, after):
                            pass
                case "astream":
                    async with request.astream().events() as events:
                        for _ in range(after):
                            await anext(events, None)
                case _:
                    task = asyncio.ensure_future(request.acall().chat_response())
                    for _ in range(after):
                        await asyncio.sleep(0)
                    task.cancel()
                    await task

    async def take_and_leave(self, turn: Turn, number: int) -> None:
        self.model.script = list(turn.model)
        before = [tuple(load()) for load in self.stores]
        await self.leave(self.sent(self.request(turn, number)), turn.cut)
        for load, old in zip(self.stores, before, strict=True):
            stored = tuple(load())
            assert conversation_problems(stored, ending="answer") == (), stored
            assert stored[: len(old)] == old or self.rewrites
        assert self.model.problems == []

    async def take(self, turn: Turn, number: int) -> None:
        self.model.script = list(turn.model)
        before = [tuple(load()) for load in self.stores]
        answer = await self.ask(self.sent(self.request(turn, number)))
        for decision in turn.decisions:
            if isinstance(answer, Exception) or decision == "leave":
                break
            pending: PendingTurn | None = answer.pending_turn()
            if pending is None:
                break
            waiting: Any = pending.to_json() if turn.stored else pending
            answer = await self.ask(self.sent(self.client.resume(waiting, decision)))
        self.check(answer, before)

    def check(self, answer: Any, before: list[tuple[Message, ...]]) -> None:
        failed = isinstance(answer, Exception)
        waits = not failed and answer.pending_turn() is not None
        self.log.append(
            type(answer).__name__ if failed else [waits, message_fields(answer.messages())]
        )
        assert self.model.problems == []
        forgotten = False  # a failed turn is not in a memory
        for load, old in zip(self.stores, before, strict=True):
            stored = tuple(load())
            assert conversation_problems(stored, ending="answer") == (), stored
            self.log.append(message_fields(stored))
            forgotten = forgotten or stored == old
            around = {"retry outside", "reprompt outside"} & self.chain.advisors
            if (failed or waits) and not around:
                assert stored == old
            kept = len(old) < len(stored) and stored[: len(old)] == old
            remembered = kept and not around and self.chain.tool_messages
            if (
                remembered
                and not isinstance(answer, Exception)
                and reason_of(answer) != "content_filter"
            ):
                assert shown(stored[len(old) :]) == shown(answer.new_messages())
        if not failed and not forgotten:
            valid = conversation_problems(answer.messages(), ending="answer") == ()
            self.last = answer.messages() if valid else self.last
        self.log.append(sorted(e.text for e in self.vectors.similarity_search("", top_k=99)))

    async def run(self, script: Sequence[Turn], *, leaving: bool = False) -> list[Any]:
        for number, turn in enumerate(script):
            if leaving and turn.cut:
                await self.take_and_leave(turn, number)
            else:
                await self.take(turn, number)
            assert asyncio.all_tasks() == {asyncio.current_task()}
        for each in self.closing:
            each.close()
        return self.log


def reason_of(answer: Any) -> str | None:
    """Return the finish reason of a call or a stream."""
    response = answer.response if hasattr(answer, "response") else answer.chat_client_response()
    reason: str | None = response.chat_response.finish_reason
    return reason


def shown(messages: Sequence[Message]) -> list[Any]:
    """Return *messages* as a guardrail shows them to the model."""
    return [
        m.mutate(text=m.text.replace("secret", "***")) if isinstance(m, UserMessage) else m
        for m in messages
    ]


def message_fields(messages: Sequence[Message]) -> list[Any]:
    """Return the comparable fields of *messages*."""
    return [
        (m.role, m.text, [c.id for c in getattr(m, "tool_calls", ())])
        if not isinstance(m, ToolResponseMessage)
        else (m.role, [(r.id, r.data) for r in m.responses])
        for m in messages
    ]


@given(chains, st.lists(turns, min_size=1, max_size=3))
@settings(max_examples=examples(30), deadline=None)
def test_conversation_stays_valid(chain: Chain, script: list[Turn]) -> None:
    """It does with any advisors and any answers."""
    threads = threading.active_count()
    logs = {mode: asyncio.run(Conversation(chain, mode).run(script)) for mode in MODES}

    assert all(log == logs["call"] for log in logs.values()), logs
    assert has_at_most(threads)


@given(chains, st.lists(turns, min_size=1, max_size=3), st.sampled_from(MODES[1:]))
@settings(max_examples=examples(30), deadline=None)
def test_abandoned_turn_keeps_conversation_valid(
    chain: Chain, script: list[Turn], mode: Mode
) -> None:
    """After an abandoned turn the conversation can continue."""
    threads = threading.active_count()
    asyncio.run(Conversation(chain, mode).run(script, leaving=True))

    assert has_at_most(threads)


def has_at_most(threads: int) -> bool:
    """Return whether there are no more than so many *threads*, and the one of a shared loop.

    The workers of a loop end soon after it.
    """
    return settled(lambda: threading.active_count() <= threads + 1)
