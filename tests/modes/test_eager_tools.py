"""Tools that start before the model's message is complete."""

import asyncio
import contextvars
import threading
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any

import anyio
import pytest

from chatclient import (
    AssistantMessage,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ChatResponse,
    Next,
    Prompt,
    ToolCall,
    ToolContext,
    UserMessage,
    tool,
)
from chatclient.advisors import HIGHEST_PRECEDENCE, ToolCallingAdvisor
from chatclient.chat.events import TextDelta, ToolCallFinished, ToolCallStarted
from chatclient.chat.messages import ToolCallChunk
from chatclient.chat.tool import ToolProgress
from chatclient.errors import ProviderError, ToolExecutionError
from chatclient.runtime.runtime import Runtime
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import (
    ToolApproval,
    ToolCallingManager,
    ToolFailurePolicy,
    ToolLimits,
    ToolRegistry,
    tool_callbacks,
)
from tests.modes.test_tool_calling import assert_paired, client_of, results

VAR: contextvars.ContextVar[str] = contextvars.ContextVar("VAR", default="nobody")


class Watched(ScriptedModel):
    """A model that waits after each piece of a stream until a condition is true."""

    def __init__(self, *answers: Any, until: Callable[[], bool] = lambda: True) -> None:
        super().__init__(*answers)
        self.until = until
        self.seen = False

    async def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        """Yield the next answer in pieces, with time for others after each."""
        async for piece in super().generate_stream(prompt, runtime):
            yield piece
            await runtime.sleep(0)
        end = time.monotonic() + 30
        while len(self.prompts) == 1 and time.monotonic() < end and not self.seen:
            await runtime.sleep(0.005)
            self.seen = self.until()


class Shop:
    """Tools that record their calls in order."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.attempts: list[int] = []
        self.keys: set[str] = set()

    @tool(effect="read")
    def look(self, item: str, context: ToolContext) -> str:
        """Look something up."""
        self.done.append(item)
        self.attempts.append(context.attempt)
        self.keys.add(context.idempotency_key)
        return f"{item} is in stock"

    @tool(effect="read")
    async def peek(self, item: str) -> str:
        """Look something up, too."""
        self.done.append(item)
        return f"{item}?"

    @tool
    def buy(self, item: str) -> str:
        """Buy something."""
        self.done.append(f"bought {item}")
        return "bought"

    @tool(effect="read", sequential=True)
    def one_by_one(self, item: str) -> str:
        """Look something up, one at a time."""
        self.done.append(item)
        return item

    @tool(effect="read", concurrency_group="desk")
    def at_the_desk(self, item: str) -> str:
        """Look something up where one is served at a time."""
        self.done.append(item)
        return item

    @tool(exclusive=True)
    def alone(self) -> str:
        """Run exclusively."""
        self.done.append("alone")
        return "alone"


def look(item: str, id: str = "") -> ToolCall:
    return call("look", f'{{"item": "{item}"}}', id=id or item)


def eager(model: ScriptedModel, shop: object, **manager: Any) -> ChatClient:
    return client_of(model, shop, **{"eager_reads": True, "blocking_concurrency": 4, **manager})


async def test_early_calls_count_towards_the_limit() -> None:
    """Calls that were started early count towards the limit of parallel calls."""
    running: set[str] = set()
    most = 0

    async def busy(item: str) -> None:
        nonlocal most
        running.add(item)
        most = max(most, len(running))
        for _ in range(200):
            await asyncio.sleep(0)
        running.remove(item)

    @tool(effect="read")
    async def peek(item: str) -> None:
        await busy(item)

    @tool
    async def buy(item: str) -> None:
        await busy(item)

    calls = [
        call(name, f'{{"item": "{item}"}}', id=item)
        for name, item in zip(["buy", "peek", "peek", "buy"], "abcd", strict=True)
    ]
    client = client_of(ScriptedModel(calls, "done"), peek, buy, eager_reads=True, max_concurrency=2)
    stream = client.prompt("x").astream()
    assert "".join([text async for text in stream]) == "done"

    assert [each.is_error for each in stream.tool_executions()] == [False] * 4
    assert most == 2


@pytest.mark.feature("lc4j-tool-streamed-call-starts-before")
def test_a_reading_tool_begins_while_the_model_speaks(ask: Ask) -> None:
    """It starts when the next call begins; results are in the order of the calls."""
    shop = Shop()
    calls = [look("tea"), call("peek", '{"item": "milk"}', id="m"), look("jam")]
    model = Watched(calls, "done", until=lambda: {"tea", "milk"} <= set(shop.done))
    result = ask(eager(model, shop).prompt("x"))

    assert model.seen == ask.streaming
    assert results(model.prompts[1]) == ["tea is in stock", "milk?", "jam is in stock"]
    assert sorted(shop.done) == ["jam", "milk", "tea"]
    assert sorted(shop.attempts) == [1, 2]
    assert len(shop.keys) == 2
    assert [each.tool_call for each in result.executions] == calls
    assert [each.attempt for each in result.executions] == [1, 1, 2]
    if ask.streaming:
        finished = [e.tool_call.id for e in result.events if isinstance(e, ToolCallFinished)]
        assert sorted(finished) == ["jam", "m", "tea"]
    assert_paired(model.prompts[1].messages)


@pytest.mark.parametrize("limits", [ToolLimits(), ToolLimits(max_repeats=None)], ids=str)
def test_a_reading_tool_without_arguments_begins_early(ask: Ask, limits: ToolLimits) -> None:
    """Some servers send no arguments at all for an empty object."""
    done: list[str] = []

    @tool(effect="read")
    def stock() -> str:
        """Count everything."""
        done.append("counted")
        return "17"

    calls = [ToolCall("a", "stock", ""), ToolCall("b", "stock", "")]
    model = Watched(calls, "done", until=lambda: "counted" in done)
    ask(eager(model, stock, limits=limits).prompt("x"))

    assert model.seen == ask.streaming
    assert results(model.prompts[1]) == ["17", "17"]


def test_early_tools_are_an_option(ask: Ask) -> None:
    """By default, tools start after the model's message."""
    one_by_one = {"eager_reads": True, "max_concurrency": 1, "blocking_concurrency": 1}
    for manager in ({"blocking_concurrency": 4}, one_by_one):
        shop = Shop()
        model = ScriptedModel([look("tea"), look("jam")], "done")
        spoken: list[int] = []

        async def listen(
            request: ChatClientRequest, call_next: Next, shop: Shop = shop, spoken: Any = spoken
        ) -> ChatClientResponse:
            response = await call_next(request)
            spoken.append(len(shop.done))
            return response

        client = client_of(model, shop, **manager).mutate().default_advisors(InTheLoop(listen))
        ask(client.build().prompt("x"))
        assert spoken == [0, 2]


class InTheLoop:
    """An advisor inside the tool loop."""

    order = 2**30

    def __init__(self, function: Any) -> None:
        self.function = function

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        response: ChatClientResponse = await self.function(request, call_next)
        return response


@pytest.mark.feature("lc4j-tool-streamed-call-starts-before")
@pytest.mark.parametrize(
    "calls",
    [
        [call("buy", '{"item": "tea"}', id="1"), look("jam")],
        [call("one_by_one", '{"item": "tea"}', id="1"), look("jam")],
        [call("alone", id="1"), look("tea"), look("jam")],
        [call("nothing", id="1"), look("jam")],
        [call("look", '{"item": "te', id="1"), look("jam")],
        [call("at_the_desk", '{"item": "tea"}', id="1"), look("jam")],
    ],
    ids=["effect", "sequential", "exclusive", "unknown", "malformed", "group"],
)
def test_what_does_not_begin_early(ask: Ask, calls: list[ToolCall]) -> None:
    """Calls with effects, exclusive calls and all calls after them start after the message."""
    shop = Shop()
    early: list[list[str]] = []

    async def listen(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        response = await call_next(request)
        early.append(list(shop.done))
        return response

    client = eager(Watched(calls, "done"), shop).mutate().default_advisors(InTheLoop(listen))
    result = ask(client.build().prompt("x"))

    assert early[0] == []
    assert result.text == "done"
    assert len(result.executions) == len(calls)


def test_nothing_begins_where_none_may_be_called(ask: Ask) -> None:
    """In a final answer without tools, no call starts early."""
    shop = Shop()
    model = ScriptedModel(lambda prompt: [look("tea"), look("jam")])
    limits = ToolLimits(max_rounds=1, on_exceeded="final_answer")
    result = ask(eager(model, shop, limits=limits).prompt("x"))

    assert sorted(shop.done) == ["jam", "tea"]
    assert len(model.prompts) == 2
    assert sum(isinstance(event, ToolCallFinished) for event in result.events) in (0, 2)


@pytest.mark.feature("lc4j-tool-streamed-call-starts-before")
@pytest.mark.parametrize("ask", ["stream", "astream"], indirect=True)
def test_what_was_started_is_ended_with_the_turn(ask: Ask) -> None:
    """When the model fails, started tools are cancelled, and its error is raised."""
    begun, ended = threading.Event(), threading.Event()

    @tool(effect="read")
    async def wait() -> str:
        """Wait for long."""
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return "late"

    class BreaksOff(Watched):
        async def generate_stream(
            self, prompt: Prompt, runtime: Runtime
        ) -> AsyncGenerator[ChatResponse | str, None]:
            async for piece in super().generate_stream(prompt, runtime):
                yield piece
            raise ProviderError("gone", provider="x")

    model = BreaksOff([call("wait", id="1"), call("wait", id="2")], until=begun.is_set)
    with pytest.raises(ProviderError, match="gone"):
        ask(eager(model, wait).prompt("x"))
    assert ended.is_set()


def test_leaving_the_stream_ends_what_was_started() -> None:
    """Closing the stream cancels started tools."""
    begun, ended = asyncio.Event(), asyncio.Event()

    @tool(effect="read")
    async def wait() -> str:
        """Wait for long."""
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return "late"

    async def leave() -> None:
        model = Watched([call("wait", id="1"), call("wait", id="2")], until=begun.is_set)
        async with eager(model, wait).prompt("x").astream().events() as events:
            async for _ in events:
                if begun.is_set():
                    break
        assert ended.is_set()

    asyncio.run(leave())


def long_reading(ended: threading.Event) -> Any:
    @tool(effect="read")
    async def wait(context: ToolContext) -> str:
        """Wait for long."""
        await context.progress("waiting")
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return "late"

    return wait


@pytest.mark.parametrize("ask", ["stream", "astream"], indirect=True)
def test_early_tools_end_with_the_turn(ask: Ask) -> None:
    """Started tools are cancelled when the round fails."""
    ended = threading.Event()

    @tool
    def fails() -> None:
        """Fail."""
        time.sleep(0.1)
        raise LookupError

    policy = ToolFailurePolicy(raise_on=(LookupError,))
    model = ScriptedModel([call("wait"), call("fails")])
    client = eager(model, [long_reading(ended), fails], exception_processor=policy)
    started = time.monotonic()
    with pytest.raises(LookupError):
        ask(client.prompt("x"))

    assert ended.is_set()
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("most", [None, 1])
def test_leaving_a_blocking_stream_ends_what_was_started(most: int | None) -> None:
    """Closing it at an event of a tool cancels the tool, with other waiting calls or without."""
    ended = threading.Event()
    limits = ToolLimits(per_tool={"wait": most}, on_exceeded="tell_model")
    model = ScriptedModel([call("wait", id="1"), call("wait", id="2")])
    events = eager(model, long_reading(ended), limits=limits).prompt("x").stream().events()
    started = time.monotonic()
    while not isinstance(next(events), ToolProgress):
        pass
    events.close()

    assert ended.is_set()
    assert time.monotonic() - started < 30


async def test_what_was_started_cleans_up_in_a_cancelled_scope() -> None:
    """A scope cancels each await of the advisor, but the tool is cancelled once."""
    cleaned: list[str] = []

    @tool(effect="read")
    async def wait(n: int) -> None:
        """Wait for long."""
        try:
            await asyncio.sleep(60)
        finally:
            with anyio.CancelScope(shield=True):
                await asyncio.sleep(0.02)
            cleaned.append("up")

    async def limit(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        with anyio.fail_after(0.1):
            return await call_next(request)

    limit.order = HIGHEST_PRECEDENCE  # type: ignore[attr-defined]
    limits = ToolLimits(per_tool={"wait": 1}, on_exceeded="tell_model")
    model = ScriptedModel([call("wait", f'{{"n": {n}}}', id=f"{n}") for n in range(2)])
    request = eager(model, wait, limits=limits).prompt("x").advisors(limit)
    with pytest.raises(TimeoutError):
        [event async for event in request.astream().events()]

    assert cleaned == ["up"]


def test_calls_that_an_advisor_takes_back_come_to_nothing(ask: Ask) -> None:
    """If an advisor replaces calls, the results of early ones are dropped."""
    shop = Shop()

    async def other_arguments(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        response = await call_next(request)
        answer = response.chat_response
        if not answer.has_tool_calls():
            return response
        message = AssistantMessage([look("coffee", id="tea"), look("jam")])
        generation = replace(answer.generations[0], output=message)
        return response.mutate(chat_response=ChatResponse((generation,), answer.metadata))

    model = Watched([look("tea"), look("jam")], "done")
    client = eager(model, shop).mutate().default_advisors(InTheLoop(other_arguments)).build()
    ask(client.prompt("x"))

    assert results(model.prompts[1]) == ["coffee is in stock", "jam is in stock"]
    assert set(shop.done) - {"tea"} == {"coffee", "jam"}
    assert_paired(model.prompts[1].messages)


def test_an_error_is_handled_by_the_policy(ask: Ask) -> None:
    """The model receives one error result, or the error is raised."""

    @tool(effect="read")
    def fails(n: int) -> str:
        """Fail."""
        msg = f"no {n}"
        raise ValueError(msg)

    calls = [call("fails", f'{{"n": {n}}}', id=f"f{n}") for n in range(3)]
    model = Watched(calls, "done")
    result = ask(eager(model, fails).prompt("x"))
    assert results(model.prompts[1]) == ["no 0", "no 1", "no 2"]
    assert all(execution.is_error for execution in result.executions)

    raising = ToolFailurePolicy(reactions={"exception": "raise"})
    with pytest.raises(ToolExecutionError) as caught:
        ask(eager(Watched(calls), fails, exception_processor=raising).prompt("x"))
    assert isinstance(caught.value.__cause__, ValueError)


def test_limits_hold(ask: Ask) -> None:
    """Calls beyond a limit are not started early."""
    shop = Shop()
    calls = [look(f"{n}") for n in range(5)]
    limits = ToolLimits(per_tool={"look": 2}, on_exceeded="tell_model")
    ask(eager(Watched(calls, "done"), shop, limits=limits).prompt("x"))
    assert sorted(shop.done) == ["0", "1"]

    shop = Shop()
    again = [[look("tea", id=f"a{n}"), look("tea", id=f"b{n}")] for n in range(2)]
    limits = ToolLimits(max_repeats=2)
    ask(eager(Watched(*again, "done"), shop, limits=limits).prompt("x"))
    assert shop.done == ["tea", "tea"]


def test_early_starts_do_not_change_keys(ask: Ask) -> None:
    """Idempotency keys depend on the turn only, and not on early starts or hooks."""

    class Reminding(ToolCallingAdvisor):
        async def before_call(self, request: ChatClientRequest) -> ChatClientRequest:
            reminded = (*request.prompt.messages, UserMessage("Be brief."))
            return request.mutate(prompt=Prompt.of(reminded, request.prompt.options))

    def keys(*, eager_reads: bool) -> set[str]:
        shop = Shop()
        calls, early = [look("tea"), look("jam")], (lambda: not eager_reads or "tea" in shop.done)
        model = Watched(calls, "done", until=early)
        loop = Reminding(ToolCallingManager(eager_reads=eager_reads, blocking_concurrency=4))
        builder = ChatClient.builder(model).default_tools(shop).default_advisors(loop)
        ask(builder.build().prompt("x").idempotency_key("1"))
        return shop.keys

    assert keys(eager_reads=True) == keys(eager_reads=False)


def test_no_early_start_after_an_unresolved_tool(ask: Ask) -> None:
    """The tool may be one that has to run alone."""
    shop = Shop()
    resolver = ToolRegistry([c for c in tool_callbacks(shop) if c.definition.name == "alone"])
    tools = [c for c in tool_callbacks(shop) if c.definition.name != "alone"]
    model = Watched([call("alone"), look("tea"), look("jam")], "done")
    ask(
        client_of(model, tools, eager_reads=True, blocking_concurrency=4, resolver=resolver).prompt(
            "x"
        )
    )

    assert shop.done[0] == "alone"


def test_events_of_tools_are_not_held_back(ask: Ask) -> None:
    """If a message's text is held back, the events of its tools are streamed."""

    @tool(effect="read")
    async def work(context: ToolContext) -> str:
        """Work."""
        await asyncio.sleep(0.05)
        await context.progress("half")
        return "done"

    model = ScriptedModel([call("work", id="1"), call("work", id="2")], "done")
    manager = ToolCallingManager(eager_reads=True, blocking_concurrency=4)
    advisor = ToolCallingAdvisor(manager, stream_tool_call_responses=False)
    builder = ChatClient.builder(model).default_tools(work).default_advisors(advisor)
    events = ask(builder.build().prompt("x")).events

    told = [e for e in events if isinstance(e, ToolProgress | ToolCallFinished)]
    expected = [ToolProgress, ToolProgress, ToolCallFinished, ToolCallFinished]
    assert sorted(type(each).__name__ for each in told) == sorted(
        each.__name__ for each in (expected if ask.streaming else [])
    )


def test_the_number_of_early_calls_is_limited(ask: Ask) -> None:
    """The limit of parallel calls applies to early calls."""
    shop = Shop()
    early: list[int] = []

    async def count(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        response = await call_next(request)
        early.append(len(shop.done))
        return response

    model = Watched([look(f"{n}") for n in range(6)], "done", until=lambda: len(shop.done) >= 2)
    client = eager(model, shop, max_concurrency=2, blocking_concurrency=2)
    ask(client.mutate().default_advisors(InTheLoop(count)).build().prompt("x"))
    assert early == [2 if ask.streaming else 0, 6]


def test_early_tools_need_approval(ask: Ask) -> None:
    """A reading tool that needs approval suspends the turn."""
    shop = Shop()
    approval = ToolApproval(needed=lambda _: True)
    client = eager(Watched([look("tea"), look("jam")], "done"), shop, interceptors=[approval])
    waiting = ask(client.prompt("x"))

    pending = waiting.answer.pending_turn()
    assert pending is not None
    assert [each.id for each in pending.pending] == ["tea", "jam"]
    assert ask(client.resume(pending, "approve")).text == "done"
    assert sorted(shop.done) == ["jam", "tea"]


def test_events_and_context_are_the_rounds(ask: Ask) -> None:
    """An early tool has the caller's context variables, and its progress is streamed."""

    @tool(effect="read")
    async def work(n: int, context: ToolContext) -> str:
        """Work."""
        await context.progress(n)
        return VAR.get()

    token = VAR.set("me")
    try:
        calls = [call("work", f'{{"n": {n}}}', id=f"w{n}") for n in range(3)]
        model = Watched(calls, "done")
        result = ask(eager(model, work).prompt("x"))
    finally:
        VAR.reset(token)
    assert results(model.prompts[1]) == ["me"] * 3
    if ask.streaming:
        news = {event.event for event in result.events if isinstance(event, ToolProgress)}
        assert news == {0, 1, 2}


def test_early_tools_with_text_that_is_held_back(ask: Ask) -> None:
    """Tools start early although only the final answer is streamed."""
    shop = Shop()
    model = Watched(["Hm.", look("tea"), look("jam")], "done", until=lambda: "tea" in shop.done)
    manager = ToolCallingManager(eager_reads=True, blocking_concurrency=4)
    advisor = ToolCallingAdvisor(manager, stream_tool_call_responses=False)
    client = ChatClient.builder(model).default_tools(shop).default_advisors(advisor).build()
    result = ask(client.prompt("x"))

    assert model.seen == ask.streaming
    assert result.text == "done"
    if ask.streaming:
        assert [e.id for e in result.events if isinstance(e, ToolCallStarted)] == ["tea", "jam"]
        texts = [e.text for e in result.events if isinstance(e, TextDelta)]
        assert "".join(texts) == "done"


def test_calls_without_ids_wait_for_the_end(ask: Ask) -> None:
    """They get generated ids when the message is complete."""
    shop = Shop()
    nameless = [replace(look("tea"), id=""), replace(look("jam"), id="")]
    model = Watched(nameless, "done")
    ask(eager(model, shop).prompt("x"))
    assert sorted(shop.done) == ["jam", "tea"]
    assert results(model.prompts[1]) == ["tea is in stock", "jam is in stock"]


def test_calls_of_one_id_are_run_once_each(ask: Ask) -> None:
    """Some servers give the same id to every call."""
    shop = Shop()
    calls = [look("tea", id="x"), look("tea", id="x"), look("jam", id="x"), look("tea", id="x")]
    model = Watched(calls, "done", until=lambda: "tea" in shop.done)
    ask(eager(model, shop).prompt("x"))

    assert sorted(shop.done) == ["jam", "tea", "tea", "tea"]
    assert results(model.prompts[1]) == [
        f"{item} is in stock" for item in ("tea", "tea", "jam", "tea")
    ]
    assert_paired(model.prompts[1].messages)


@pytest.mark.parametrize("ask", ["stream", "astream"], indirect=True)
@pytest.mark.parametrize(
    "number",
    [
        lambda chunk, _: chunk,
        lambda chunk, _: replace(chunk, index=0),
        lambda chunk, _: replace(chunk, index=None),
        lambda chunk, at: replace(chunk, index=at),
        lambda chunk, _: replace(chunk, id="tjm"[chunk.index], name="look"),
    ],
    ids=["numbered", "one number", "no number", "fragments numbered", "all repeated"],
)
def test_calls_in_pieces_begin_when_they_are_complete(
    ask: Ask, number: Callable[[ToolCallChunk, int], ToolCallChunk]
) -> None:
    """With each way of numbering the pieces, tools receive their complete arguments."""
    shop = Shop()
    chunks = [
        number(chunk, at)
        for at, chunk in enumerate(
            ToolCallChunk(call, "tjm"[call] if begins else "", "look" if begins else "", piece)
            for call, item in enumerate(("tea", "jam", "milk"))
            for begins, piece in ((True, ""), (False, '{"item": '), (False, f'"{item}"}}'))
        )
    ]
    model = Watched(AssistantMessage(chunks), "done", until=lambda: len(shop.done) == 2)
    result = ask(eager(model, shop).prompt("x"))

    assert model.seen
    assert results(model.prompts[1]) == [f"{item} is in stock" for item in ("tea", "jam", "milk")]
    assert sorted(shop.done) == ["jam", "milk", "tea"]
    assert sorted(shop.attempts) == [1, 2, 3]
    assert [each.tool_call.id for each in result.executions] == ["t", "j", "m"]
    started = [event for event in result.events if isinstance(event, ToolCallStarted)]
    assert [(event.id, event.name) for event in started] == [(id, "look") for id in "tjm"]


@pytest.mark.parametrize("ask", ["stream", "astream"], indirect=True)
def test_calls_whose_pieces_are_mixed_wait_for_the_end(ask: Ask) -> None:
    """If pieces of several calls are interleaved, no call starts early."""
    shop = Shop()
    chunks = [
        ToolCallChunk(0, "t", "look", '{"item": "te'),
        ToolCallChunk(1, "j", "look", '{"item": "ja'),
        ToolCallChunk(0, arguments='a"}'),
        ToolCallChunk(1, arguments='m"}'),
    ]
    model = Watched(AssistantMessage(chunks), "done")
    ask(eager(model, shop).prompt("x"))

    assert results(model.prompts[1]) == ["tea is in stock", "jam is in stock"]
    assert sorted(shop.done) == ["jam", "tea"]


def test_each_of_equal_calls_has_its_number(ask: Ask) -> None:
    """Each has its own idempotency key and attempt, whether it started early or not."""
    shop = Shop()
    model = Watched([look("tea", id=id) for id in "abc"], "done", until=lambda: len(shop.keys) == 2)
    result = ask(eager(model, shop).prompt("x"))

    assert model.seen == ask.streaming
    assert [each.attempt for each in result.executions] == [1, 2, 3]
    assert sorted(shop.attempts) == [1, 2, 3]
    assert len(shop.keys) == 3


@pytest.mark.parametrize("ask", ["stream", "astream"], indirect=True)
def test_what_an_advisor_keeps_to_itself_does_not_begin(ask: Ask) -> None:
    """Calls whose first pieces an advisor removes from the stream do not start early."""

    async def hide(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        async def emit(event: Any) -> None:
            if not isinstance(event, ToolCallStarted):
                await request.runtime.emit(event)

        hidden = request.mutate(runtime=request.runtime.with_emitter(emit))
        response = await call_next(hidden)
        early.append(sorted(shop.done))
        return response

    shop, early = Shop(), list[list[str]]()
    model = Watched([look("tea"), look("jam")], "done")
    client = eager(model, shop).mutate().default_advisors(InTheLoop(hide)).build()
    ask(client.prompt("x"))

    assert early == [[], ["jam", "tea"]]
    assert results(model.prompts[1]) == ["tea is in stock", "jam is in stock"]


def test_the_trail_has_early_calls_in_their_round(ask: Ask) -> None:
    """Early calls are recorded in the round of their message."""
    shop = Shop()
    model = Watched([look("tea"), look("jam")], "done", until=lambda: "tea" in shop.done)
    result = ask(eager(model, shop).prompt("x"))

    first, second = result.answer.trail().rounds
    assert sorted(step.operation.call.id for step in first.tools) == ["jam", "tea"]
    assert second.tools == ()
