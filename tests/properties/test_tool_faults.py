"""Random turns with random faults: the history stays valid, and no resources leak.

A plan has the model's answers, interceptors, limits and policies, and a fault at some point: the
model or a tool raises, the request is cancelled, or the consumer closes the stream. In every case
all prompts satisfy the providers' rules, and no task, thread or socket remains.
"""

import asyncio
import contextlib
import gc
import itertools
import subprocess
import sys
import threading
import warnings
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings, strategies as st

from chatclient import (
    AssistantMessage,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ChatResponse,
    Message,
    Next,
    Prompt,
    ToolContext,
    ToolResponseMessage,
    UserMessage,
    tool,
)
from chatclient.advisors import ToolCallingAdvisor
from chatclient.chat.messages import ToolCall, ToolResponse
from chatclient.chat.model import ChatModel
from chatclient.client.request import ChatClientRequestSpec
from chatclient.errors import ToolDeniedError, ToolExecutionError, ToolLoopError
from chatclient.providers.openai.chat import OpenAIChatModel
from chatclient.runtime.runtime import Runtime
from chatclient.testing import Answer, Mode, ScriptedModel
from chatclient.tools import (
    Decision,
    NextTool,
    PendingTurn,
    ToolApproval,
    ToolCallingManager,
    ToolFailurePolicy,
    ToolInterceptor,
    ToolInvocation,
    ToolLimits,
    ToolResult,
)
from chatclient.tools.execution.failure import OnLimit
from tests.support.examples import examples
from tests.support.servers import ChatServer, completion, pairing_problem
from tests.support.waiting import settled

MODES: tuple[Mode, ...] = ("call", "acall", "stream", "astream")


def problem_with(messages: Sequence[Message]) -> str | None:
    """Return why a provider would refuse *messages*.

    Each message with tool calls is followed directly by their answers: one for each, in any order
    for most providers, in ours in that of the calls; ids are unique within a message; no answer
    stands without its call; and the last message is not the assistant's.
    """
    open_ids: list[str] = []
    for at, message in enumerate(messages):
        if isinstance(message, ToolResponseMessage):
            result_ids = [response.id for response in message.responses]
            if result_ids != open_ids:
                return f"{at}: answers to {result_ids}, open are {open_ids}"
            open_ids = []
        elif open_ids:
            return f"{at}: {message} instead of answers to {open_ids}"
        elif isinstance(message, AssistantMessage):
            open_ids = [made.id for made in message.tool_calls]
            if len(set(open_ids)) < len(open_ids):
                return f"{at}: ids occur twice: {open_ids}"
    if open_ids or isinstance(messages[-1], AssistantMessage):
        return f"it ends with {messages[-1]}"
    return None


# --- plans ---

Kind = Literal["none", "boom", "cancel", "leave"]


class BoomError(Exception):
    """The injected fault."""


class CancelledHere(BaseException):
    """Ends a blocking request from inside, like an interrupt."""


@dataclass(frozen=True)
class Plan:
    """The plan of one turn."""

    rounds: list[Any]
    interceptors: list[str]
    on_exceeded: OnLimit
    total: int | None
    always_raise: bool
    concurrency: int
    hold_back: bool
    approve: bool
    same_ids: bool
    fault: Kind
    at: int


@dataclass
class Fault:
    """Counts the points of a turn and raises at one of them."""

    kind: Kind
    at: int
    task: "asyncio.Task[Any] | None" = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    points: int = 0
    agent: ScriptedModel | None = None

    def pass_point(self) -> None:
        with self.lock:
            self.points += 1
            strikes = self.points == self.at
        if strikes and self.kind == "boom":
            raise BoomError
        if strikes and self.kind == "cancel":
            if self.task is None:
                raise CancelledHere
            self.task.get_loop().call_soon_threadsafe(self.task.cancel)


NAMES = ("plain", "waits", "slow", "fails", "direct", "if_last", "alone", "agent", "unknown")
ARGUMENTS = ("{}", '{"n": 1}', '{"n": 2}', '{"n": "x"}', '{"m": 1}', "[", '{"n": 1')
FOR_AGENTS = ('{"request": "Do it."}', '{"request": "Do it."}', "{}")


def arguments_for(name: str) -> st.SearchStrategy[tuple[str, str]]:
    arguments = FOR_AGENTS if name == "agent" else ARGUMENTS
    return st.tuples(st.just(name), st.sampled_from(arguments))


calls = st.lists(st.sampled_from(NAMES).flatmap(arguments_for), max_size=5)
texts = st.sampled_from(["", "Some words, which are cut."])
plans = st.builds(
    Plan,
    rounds=st.lists(st.tuples(texts, calls), max_size=4),
    interceptors=st.lists(
        st.sampled_from(["pass", "veto", "answer", "rewrite", "break", "emit", "approval"]),
        max_size=3,
    ),
    on_exceeded=st.sampled_from(["partial", "raise", "tell_model", "final_answer"]),
    total=st.sampled_from([None, 1, 3]),
    always_raise=st.sampled_from([False, False, False, True]),
    concurrency=st.sampled_from([1, 3]),
    hold_back=st.booleans(),
    approve=st.booleans(),
    same_ids=st.booleans(),
    fault=st.sampled_from(["none", "boom", "cancel", "leave"]),
    at=st.integers(1, 25),
)


def tools_of(fault: Fault) -> list[Any]:
    """Return tools of every behaviour, which pass points for faults."""

    @tool
    def plain(n: int = 0) -> int:
        fault.pass_point()
        return n

    @tool
    async def waits(context: ToolContext, n: int = 0) -> int:
        fault.pass_point()
        await context.progress("begun")
        await asyncio.sleep(0.001)
        fault.pass_point()
        return n

    @tool(timeout=0.02)
    async def slow(n: int = 0) -> None:
        await asyncio.sleep(1)

    @tool(sequential=True)
    def fails(n: int = 0) -> None:
        fault.pass_point()
        raise LookupError("it fails")

    @tool(return_direct=True)
    def direct(n: int = 0) -> str:
        return "direct"

    @tool(return_direct="if_last")
    def if_last(n: int = 0) -> str:
        return "if last"

    @tool(exclusive=True, effect="read")
    async def alone(n: int = 0) -> str:
        await asyncio.sleep(0)
        fault.pass_point()
        return "alone"

    def works(prompt: Prompt) -> Answer:
        fault.pass_point()
        asked = isinstance(prompt.messages[-1], UserMessage)
        return [ToolCall("c0", "plain", "{}"), ToolCall("c0", "alone", "{}")] if asked else "it is"

    fault.agent = ScriptedModel(works)
    manager = ToolCallingManager(interceptors=[ToolApproval()])
    builder = ChatClient.builder(fault.agent).default_tools(plain, alone)
    agent = builder.tool_calling_manager(manager).build().as_tool("agent", "An agent.")
    return [plain, waits, slow, fails, direct, if_last, alone, agent]


def interceptor_of(kind: str, fault: Fault) -> ToolInterceptor:
    """Return an interceptor that applies *kind* to every third call."""
    if kind == "approval":
        return ToolApproval()
    numbers = itertools.count()

    async def intercept(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        fault.pass_point()
        match kind if next(numbers) % 3 == 0 else "pass":
            case "veto":
                raise ToolDeniedError("no", tool_name=invocation.tool_call.name)
            case "answer":
                return ToolResult("instead")
            case "rewrite":
                invocation = invocation.with_arguments('{"n": 7}')
            case "break":
                raise ValueError("a broken interceptor")
            case "emit":
                await invocation.context.progress("on the way")
        result = await call_next(invocation)
        fault.pass_point()
        return result

    return intercept


class FaultyModel(ScriptedModel):
    """Answers as planned, passing points before, during and after."""

    def __init__(self, fault: Fault, *answers: Answer) -> None:
        super().__init__(*answers, "the end", "the end", "the end", "the end")
        self.fault = fault

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        self.fault.pass_point()
        return await super().generate(prompt, runtime)

    async def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        self.fault.pass_point()
        async with contextlib.aclosing(super().generate_stream(prompt, runtime)) as chunks:
            async for chunk in chunks:
                self.fault.pass_point()
                yield chunk


def calls_of(plan: Plan) -> list[tuple[str, list[ToolCall]]]:
    """Return the model's calls of each round, with distinct ids or one id."""
    ids = itertools.repeat(0) if plan.same_ids else itertools.count()
    return [
        (text, [ToolCall(f"c{next(ids)}", name, arguments) for name, arguments in made])
        for text, made in plan.rounds
    ]


def client_of(plan: Plan, model: ChatModel, fault: Fault) -> ChatClient:
    manager = ToolCallingManager(
        max_concurrency=plan.concurrency,
        blocking_concurrency=plan.concurrency,
        limits=ToolLimits(
            max_rounds=6, max_total_calls=plan.total, max_repeats=2, on_exceeded=plan.on_exceeded
        ),
        exception_processor=ToolFailurePolicy(always_raise=plan.always_raise),
        interceptors=[interceptor_of(kind, fault) for kind in plan.interceptors],
    )

    async def inside(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        fault.pass_point()
        response = await call_next(request)
        fault.pass_point()
        return response

    loop = ToolCallingAdvisor(manager, stream_tool_call_responses=not plan.hold_back)
    builder = ChatClient.builder(model).default_advisors(loop, inside)
    return builder.default_tools(*tools_of(fault)).build()


# --- running plans ---

EXPECTED = (BoomError, CancelledHere, ToolExecutionError, ToolLoopError)


def send(request: ChatClientRequestSpec, mode: Mode, plan: Plan, fault: Fault) -> Any:
    """Send *request* with the fault and its consequences; return the pending turn."""
    left = plan.at if plan.fault == "leave" else None
    match mode:
        case "call":
            return request.call().pending_turn()
        case "stream":
            stream = request.stream()
            events = stream.events()
            for _ in itertools.islice(events, left):
                pass
            finished = next(events, None) is None
            events.close()
            return stream.pending_turn() if finished and left is None else None
        case _:
            return asyncio.run(_on_loop(request, mode, left, fault))


async def _on_loop(
    request: ChatClientRequestSpec, mode: Mode, left: int | None, fault: Fault
) -> Any:
    async def consume() -> Any:
        if mode == "acall":
            return (await request.acall()).pending_turn()
        stream = request.astream()
        seen = 0
        async with stream.events() as events:
            async for _ in events:
                seen += 1
                if seen == left:
                    return None
        return stream.pending_turn()

    task = fault.task = asyncio.create_task(consume())
    await asyncio.wait([task])
    fault.task = None
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return None if task.cancelled() else task.result()


def run(plan: Plan, model: ChatModel, fault: Fault, mode: Mode) -> None:
    """Run the turn of *plan*, resumed as often as it is suspended."""
    client = client_of(plan, model, fault)
    request = client.prompt("x")
    with contextlib.suppress(*EXPECTED):
        while isinstance(turn := send(request, mode, plan, fault), PendingTurn):
            decisions: Any = {
                id: Decision(plan.approve ^ bool(n % 2)) for n, id in enumerate(turn.to_decide())
            }
            request = client.resume(turn.to_json(), decisions)


def other_threads() -> set[threading.Thread]:
    """Return the running threads except the private loop's."""
    return {each for each in threading.enumerate() if each.name != "chatclient-loop"}


def tasks_of_the_private_loop() -> int:
    """Return the number of tasks on loops in threads of the library."""
    from chatclient.runtime import threads

    return sum(len(asyncio.all_tasks(loop._loop)) for loop in threads._loops)


def answers_of(plan: Plan) -> list[Answer]:
    return [[text, *made] if text else made or "nothing" for text, made in calls_of(plan)]


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=examples(150), deadline=None)
@given(plan=plans)
def test_history_stays_valid(mode: Mode, plan: Plan) -> None:
    """Every prompt is valid, and no task or thread remains."""
    before = other_threads()
    fault = Fault(plan.fault, plan.at)
    model = FaultyModel(fault, *answers_of(plan))
    run(plan, model, fault, mode)

    assert fault.agent is not None
    prompts = [*model.prompts, *fault.agent.prompts]
    problems = [problem_with(prompt.messages) for prompt in prompts]
    assert not any(problems), problems
    assert settled(lambda: other_threads() <= before)
    assert settled(lambda: tasks_of_the_private_loop() == 0)


# --- the same over real HTTP ---


@pytest.fixture(scope="module")
def server() -> Iterator[ChatServer]:
    """Start a server whose replies are set by each example."""
    server = ChatServer("never")
    yield server
    server.close()


def sockets() -> int:
    """Return the number of open sockets, where the system lists them."""
    folder = Path("/proc/self/fd")
    links = []
    for each in folder.iterdir() if folder.exists() else ():
        with contextlib.suppress(OSError):
            links.append(str(each.readlink()))
    return sum(link.startswith("socket:") for link in links)


def replies_of(plan: Plan) -> Callable[[dict[str, Any]], Any]:
    """Return the replies of a server: as planned, then the end."""
    replies = iter(
        [
            completion(text or None, *((each.id, each.name, each.arguments) for each in made))
            for text, made in calls_of(plan)
        ]
    )
    return lambda request: next(replies, "the end")


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=examples(40), deadline=None)
@given(plan=plans)
def test_no_connection_leaks(server: ChatServer, mode: Mode, plan: Plan) -> None:
    """All requests are valid, and a closed client leaves no socket."""
    settled(lambda: server.open_connections == 0)
    before = sockets()
    server.requests.clear()
    server._replies = [replies_of(plan)]
    fault = Fault(plan.fault, plan.at)
    model = OpenAIChatModel("stub", api_key="k", base_url=server.url, max_retries=0)
    try:
        run(plan, model, fault, mode)
        server._replies = ["still here"]
        assert ChatClient.create(model).prompt("x").call().content() == "still here"
    finally:
        model.close()

    assert not [each for each in server.requests if pairing_problem(each["messages"])]
    assert settled(lambda: server.open_connections == 0)
    assert settled(lambda: sockets() <= before)


def test_validator() -> None:
    """It detects each way in which calls and results may not match."""
    user = UserMessage("x")
    asks = AssistantMessage(tool_calls=[ToolCall("a", "f", "{}"), ToolCall("b", "f", "{}")])
    twice = AssistantMessage(tool_calls=[ToolCall("a", "f", "{}")] * 2)

    def answers(*ids: str) -> ToolResponseMessage:
        return ToolResponseMessage([ToolResponse(id, "f", "1") for id in ids])

    assert problem_with([user]) is None
    assert problem_with([user, asks]) is not None
    assert problem_with([user, asks, answers("a", "b")]) is None
    assert problem_with([user, asks, answers("a")]) is not None
    assert problem_with([user, asks, answers("b", "a")]) is not None
    assert problem_with([user, answers("a")]) is not None
    assert problem_with([user, asks, user]) is not None
    assert problem_with([user, twice, user]) is not None
    assert problem_with([user, AssistantMessage("done")]) is not None


# --- unobserved errors ---


@tool
async def broken() -> None:
    """Fail immediately."""
    raise LookupError("broken")


def failing_client() -> ChatClient:
    """Return a client of a model that calls two failing tools in parallel, which raises."""
    policy = ToolFailurePolicy(always_raise=True)
    manager = ToolCallingManager(exception_processor=policy)
    model = ScriptedModel([ToolCall("a", "broken", "{}"), ToolCall("b", "broken", "{}")])
    builder = ChatClient.builder(model).default_tools(broken)
    return builder.tool_calling_manager(manager).build()


async def reports_of(work: Callable[[], Coroutine[Any, Any, None]]) -> list[Any]:
    """Return the reports to the loop's exception handler during *work* and after it."""
    reports: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))
    await work()
    gc.collect()
    await asyncio.sleep(0)
    return reports


def test_further_errors_are_not_reported() -> None:
    """If two tools fail, one error is raised and none reported."""

    async def work() -> None:
        with pytest.raises(ToolExecutionError):
            await failing_client().prompt("x").acall()

    assert asyncio.run(reports_of(work)) == []


def test_error_after_close_is_not_reported() -> None:
    """An error after the stream is closed is not reported."""

    async def work() -> None:
        async with failing_client().prompt("x").astream().events() as events:
            await anext(events)
            await asyncio.sleep(0.01)

    assert asyncio.run(reports_of(work)) == []


def test_cancelled_tool_is_closed() -> None:
    """An async tool cancelled before its start is not left unawaited."""

    @tool(timeout=1e-9)
    async def hasty() -> None:
        """Have no time."""

    model = ScriptedModel(ToolCall("a", "hasty", "{}"), "done")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ChatClient.create(model).prompt("x").tools(hasty).call().content()
        gc.collect()

    assert caught == []


EXITING = """
from chatclient import ChatClient
from chatclient.testing import ScriptedModel, call
from chatclient import tool

@tool
async def leave() -> str:
    raise SystemExit(3)

@tool
async def stay() -> str:
    return "here"

def ask(name):
    model = ScriptedModel(call(name), "done")
    return ChatClient.create(model).prompt("x").tools(leave, stay).call().content()

try:
    ask("leave")
except SystemExit as error:
    print("exit", error.code)
print(ask("stay"))
"""


@pytest.mark.process("Python")
def test_async_tool_that_exits() -> None:
    """A blocking caller gets the exit, and the next async tool still runs."""
    done = subprocess.run(
        [sys.executable, "-c", EXITING], capture_output=True, text=True, check=True, timeout=8
    )

    assert done.stdout.split("\n")[:2] == ["exit 3", "done"]
