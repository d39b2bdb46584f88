"""Sagas: what tools have done is undone when a later one fails, or the turn does."""

import asyncio
from typing import Any

import pytest
from conftest import Ask
from test_tool_calling import assert_paired, results

from chatclient import ChatClient, Prompt, ToolResponseMessage, UserMessage
from chatclient.advisors.memory import MessageChatMemoryAdvisor
from chatclient.errors import ProviderError, ToolDefinitionError, ToolExecutionError, ToolLoopError
from chatclient.events import ToolProgress
from chatclient.memory import InMemoryChatMemoryRepository, MessageWindowChatMemory
from chatclient.testing import ScriptedModel, call
from chatclient.tool import ToolContext, ToolMetadata
from chatclient.tools import (
    FunctionToolCallback,
    ToolApproval,
    ToolCallingManager,
    ToolExecution,
    ToolFailurePolicy,
    ToolLimits,
    tool,
    tool_callbacks,
)


class Trip:
    """Books, and takes back; notes both."""

    def __init__(self) -> None:
        self.log: list[str] = []

    @tool(compensation="cancel_flight")
    def book_flight(self, city: str, seats: int = 1) -> str:
        """Book a flight."""
        self.log.append(f"flight to {city}")
        return "booked"

    def cancel_flight(self, city: str) -> None:
        self.log.append(f"no flight to {city}")

    @tool(compensation="cancel_hotel")
    async def book_hotel(self, city: str) -> str:
        """Book a hotel."""
        self.log.append(f"hotel in {city}")
        return "booked"

    async def cancel_hotel(self, execution: ToolExecution) -> None:
        await asyncio.sleep(0)
        self.log.append(f"no hotel: {execution.tool_call.arguments}, {execution.response.data}")

    @tool
    def pay(self, euro: int) -> str:
        """Pay."""
        if euro > 100:
            msg = "too dear"
            raise ValueError(msg)
        self.log.append("paid")
        return "paid"

    @tool(effect="read")
    def look_up(self, city: str) -> str:
        """Look a city up."""
        raise LookupError(city)


FLIGHT = call("book_flight", '{"city": "Rome", "seats": 2}', id="f")
HOTEL = call("book_hotel", '{"city": "Rome"}', id="h")
DEAR = call("pay", '{"euro": 900}', id="d")
CHEAP = call("pay", '{"euro": 9}', id="c")
BOOKED = ["flight to Rome", "hotel in Rome"]
UNDONE = ['no hotel: {"city": "Rome"}, booked', "no flight to Rome"]


def client_of(model: ScriptedModel, *tools: Any, **manager: Any) -> ChatClient:
    builder = ChatClient.builder(model).default_tools(*tools)
    return builder.tool_calling_manager(ToolCallingManager(**manager)).build()


def test_a_failure_undoes_what_was_done(ask: Ask) -> None:
    """All rounds of the turn, the last call first; the model is told where it stands."""
    trip = Trip()
    model = ScriptedModel(FLIGHT, [HOTEL, DEAR], "sorry")
    result = ask(client_of(model, trip).prompt("x"))

    assert trip.log == [*BOOKED, *UNDONE]
    last = model.prompts[2].messages
    told = "'{}' was run, and then undone because 'pay' failed."
    assert results(model.prompts[2]) == [told.format("book_hotel"), "too dear"]
    assert isinstance(last[2], ToolResponseMessage)
    assert (last[2].responses[0].data, last[2].responses[0].is_error) == (
        told.format("book_flight"),
        True,
    )
    assert_paired(last)
    assert [execution.is_error for execution in result.executions] == [True, True, True]
    assert result.text == "sorry"


def test_what_was_undone_is_not_undone_again(ask: Ask) -> None:
    """After a second attempt only that is taken back."""
    trip = Trip()
    again = call("book_flight", '{"city": "Oslo"}', id="g")
    ask(client_of(ScriptedModel(FLIGHT, DEAR, again, DEAR, "sorry"), trip).prompt("x"))

    assert trip.log == [
        "flight to Rome", "no flight to Rome", "flight to Oslo", "no flight to Oslo",
    ]  # fmt: skip


def test_earlier_turns_stand(ask: Ask) -> None:
    """A turn takes back what it has done itself; memory holds what came of it."""
    trip = Trip()
    memory = MessageWindowChatMemory(InMemoryChatMemoryRepository())
    model = ScriptedModel(FLIGHT, "booked", HOTEL, DEAR, "sorry", "hello")
    builder = client_of(model, trip).mutate()
    client = builder.default_advisors(MessageChatMemoryAdvisor(memory)).build()
    for text in ("fly", "stay", "hi"):
        ask(client.prompt(text).conversation("c"))

    assert trip.log == [*BOOKED, UNDONE[0]]
    said = model.prompts[-1].messages
    assert_paired(said)
    answers = [r for m in said if isinstance(m, ToolResponseMessage) for r in m.responses]
    assert [answer.is_error for answer in answers] == [False, True, True]


@pytest.mark.parametrize(
    "slip",
    [call("look_up", '{"city": "Rome"}'), call("pay", '{"euro": "much"}'), call("fly")],
)
def test_slips_undo_nothing(slip: Any, ask: Ask) -> None:
    """Tools that read, arguments that do not fit and names that are unknown can be mended."""
    trip = Trip()
    result = ask(client_of(ScriptedModel(FLIGHT, slip, CHEAP, "done"), trip).prompt("x"))

    assert trip.log == ["flight to Rome", "paid"]
    assert [execution.is_error for execution in result.executions] == [False, True, False]


def test_the_others_are_undone_when_one_cannot_be(ask: Ask) -> None:
    """A compensation that fails is logged; the call still stands, and the model knows."""

    class Stubborn(Trip):
        async def cancel_hotel(self, execution: ToolExecution) -> None:
            msg = "non-refundable"
            raise RuntimeError(msg)

    trip = Stubborn()
    result = ask(client_of(ScriptedModel(FLIGHT, HOTEL, DEAR, "sorry"), trip).prompt("x"))

    assert trip.log == [*BOOKED, UNDONE[1]]
    assert [execution.is_error for execution in result.executions] == [True, False, True]


@pytest.mark.parametrize(
    ("script", "manager", "error"),
    [
        (
            (FLIGHT, [HOTEL, DEAR]),
            {"exception_processor": ToolFailurePolicy(always_raise=True)},
            ToolExecutionError,
        ),
        ((FLIGHT, HOTEL), {"limits": ToolLimits(max_rounds=2, on_exceeded="raise")}, ToolLoopError),
        ((FLIGHT, HOTEL, ProviderError("down")), {}, ProviderError),
    ],
)
def test_a_turn_that_fails_is_undone(
    script: tuple[Any, ...], manager: dict[str, Any], error: type[Exception], ask: Ask
) -> None:
    """Whatever ends a turn with an error: a tool's failure that is raised, a limit, a provider."""
    trip = Trip()
    client = client_of(ScriptedModel(*script), trip, **manager, max_concurrency=1)
    with pytest.raises(error):
        ask(client.prompt("x"))

    assert trip.log == [*BOOKED, *UNDONE]


async def _ask(client: ChatClient) -> str:
    return (await client.prompt("x").acall()).content()


async def test_a_turn_that_is_cancelled_is_undone() -> None:
    """Cancelling ends when what was done is taken back."""
    trip, started = Trip(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        started.set()
        await asyncio.sleep(60)
        return "done"

    client = client_of(ScriptedModel(FLIGHT, call("wait")), trip, wait)
    task = asyncio.ensure_future(_ask(client))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert trip.log == ["flight to Rome", "no flight to Rome"]


@tool
async def pack(context: ToolContext) -> str:
    """Pack."""
    await context.progress("shirts")
    await asyncio.sleep(60)
    return "packed"


def test_a_blocking_stream_that_is_left_is_undone() -> None:
    """Whoever leaves before the turn has come to its end has nothing booked."""
    trip = Trip()
    client = client_of(ScriptedModel(FLIGHT, call("pack")), trip, pack)
    for event in (events := client.prompt("x").stream().events()):
        if isinstance(event, ToolProgress):
            break
    events.close()

    assert trip.log == ["flight to Rome", "no flight to Rome"]


async def test_an_async_stream_that_is_left_is_undone() -> None:
    """The same on a loop, by the time the stream is closed."""
    trip = Trip()
    client = client_of(ScriptedModel(FLIGHT, call("pack")), trip, pack)
    async with client.prompt("x").astream().events() as events:
        async for event in events:
            if isinstance(event, ToolProgress):
                break

    assert trip.log == ["flight to Rome", "no flight to Rome"]


def test_a_turn_that_waited_is_undone(ask: Ask) -> None:
    """What was done before somebody approved belongs to the turn as well."""
    trip = Trip()
    approval = ToolApproval(needed=lambda invocation: invocation.tool_call.name == "pay")
    model = ScriptedModel(FLIGHT, [HOTEL, DEAR], "sorry")
    client = client_of(model, trip, interceptors=[approval])
    pending = ask(client.prompt("x")).response.context["pending_turn"]
    assert trip.log == BOOKED
    result = ask(client.resume(pending, "approve"))

    assert trip.log == [*BOOKED, *UNDONE]
    assert_paired(model.prompts[-1].messages)
    assert result.text == "sorry"


def test_a_loop_of_ones_own_undoes_too() -> None:
    """The manager does it, whoever runs the loop."""
    trip, manager = Trip(), ToolCallingManager()
    model = ScriptedModel(FLIGHT, DEAR)
    options = model.options.mutate(tool_callbacks=tuple(tool_callbacks(trip)))
    prompt = Prompt([UserMessage("x")], options)
    for _ in range(2):
        result = manager.execute_tool_calls(prompt, model.call(prompt))
        prompt = Prompt(result.conversation_history, options)

    assert trip.log == ["flight to Rome", "no flight to Rome"]
    assert_paired(prompt.messages)


def test_a_compensation_takes_what_it_wants(ask: Ask) -> None:
    """Some parameters of the tool, and the context; annotations may be texts."""
    seen: list[Any] = []

    def take_back(context: ToolContext, item: "str") -> None:
        seen.append((context["shop"], context.tool_name, item))

    def note(execution: "ToolExecution") -> None:
        seen.append(execution.response.data)

    @tool(compensation=take_back)
    def buy(item: str, count: int) -> str:
        """Buy it."""
        return f"{count} {item}"

    @tool(compensation=note)
    def sell(item: str) -> str:
        """Sell it."""
        return item

    script = (call("buy", '{"item": "tea", "count": 2,}'), call("sell", '{"item": "cup"}'), DEAR)
    client = client_of(ScriptedModel(*script, "sorry"), buy, sell, Trip())
    ask(client.prompt("x").tool_context(shop="s"))

    assert seen == ["cup", ("s", "buy", "tea")]


def return_it(item: "Unknown") -> None:  # type: ignore[name-defined]  # noqa: F821
    """Take back."""


@pytest.mark.parametrize(
    ("compensation", "problem"),
    [
        ("nothing", "is 'nothing', which cannot be called"),
        (lambda item, price: None, r"wants \['price'\], which the tool does not get.*\['item'\]"),
        (return_it, r"compensation of tool 'buy' cannot be told: name 'Unknown' is not defined"),
        (dict.update, r"compensation of tool 'buy' "),
    ],
)
def test_what_cannot_undo_is_refused(compensation: Any, problem: str) -> None:
    """A compensation is checked when the tool is made, not when it is needed."""

    def buy(item: str) -> str:
        return item

    with pytest.raises(ToolDefinitionError, match=problem):
        FunctionToolCallback(buy, metadata=ToolMetadata(compensation=compensation))
