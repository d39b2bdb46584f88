"""Guarantees for the consumer of a stream: its end, its timeouts and its response."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import suppress
from typing import Any

import pytest

from chatclient import (
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ChatModel,
    ChatResponse,
    Next,
    Prompt,
    tool,
)
from chatclient.advisors import MEMORY_ORDER
from chatclient.chain.chain import TOOL_CALLING_ORDER
from chatclient.chat import TextReplaced
from chatclient.client.stream_items import AsyncItems
from chatclient.errors import BlockingCallError, OverloadedError, UsageError
from chatclient.runtime.runtime import Runtime
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import (
    NextTool,
    ToolApproval,
    ToolCallingManager,
    ToolFailurePolicy,
    ToolInvocation,
    ToolResult,
)


class Slow(ChatModel):
    """A model that streams two pieces, and the third when an event is set."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        raise NotImplementedError

    async def generate_stream(self, prompt: Prompt, runtime: Runtime) -> AsyncGenerator[str, None]:
        yield "one "
        yield "two "
        await self.go_on.wait()
        yield "three"


async def _begun(model: Slow) -> tuple[AsyncItems[str], asyncio.Future[str]]:
    """Return a stream of which two pieces were read, and a task that waits for the third."""
    pieces = ChatClient.create(model).prompt("Hi").astream().content()
    assert [await anext(pieces), await anext(pieces)] == ["one ", "two "]
    waiting = asyncio.ensure_future(anext(pieces))
    await asyncio.sleep(0)
    return pieces, waiting


@pytest.mark.feature("answer-cancelling-subscription")
def test_an_async_stream_may_be_closed_by_another_task() -> None:
    """The task that waits for the next piece gets the end of the stream, without a cancellation."""

    async def main() -> list[str]:
        pieces, waiting = await _begun(Slow())
        await pieces.aclose()
        with pytest.raises(StopAsyncIteration):
            await waiting
        return [piece async for piece in pieces]

    assert asyncio.run(main()) == []


class Endless(ChatModel):
    """A model that streams until it is closed, and records that."""

    def __init__(self) -> None:
        self.log: list[str] = []

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        raise NotImplementedError

    async def generate_stream(self, prompt: Prompt, runtime: Runtime) -> AsyncGenerator[str, None]:
        try:
            while True:
                yield "and so on "
        finally:
            self.log.append("stopped")


@pytest.mark.parametrize("error", [None, KeyError])
def test_the_end_of_a_with_ends_a_stream(error: type[KeyError] | None) -> None:
    """After the block, the request has ended although the iterator is still referenced."""
    model = Endless()
    stream = ChatClient.create(model).prompt("Hi").stream()
    pieces: Generator[str, None, None] | None = None
    with suppress(KeyError), stream:
        pieces = stream.content()
        assert next(pieces) == "and so on "
        if error is not None:
            raise error

    assert model.log == ["stopped"]
    assert pieces is not None
    assert list(pieces) == []
    assert stream.trail().rounds[-1].text == "and so on "


@pytest.mark.feature("answer-cancelling-subscription")
@pytest.mark.parametrize("error", [None, KeyError])
def test_the_end_of_an_async_with_ends_a_stream(error: type[KeyError] | None) -> None:
    """The request has cleaned up when the block ends."""
    model = Endless()

    async def main() -> None:
        stream = ChatClient.create(model).prompt("Hi").astream()
        with suppress(KeyError):
            async with stream:
                async for _piece in stream:
                    if error is not None:
                        raise error
                    break
                assert model.log == []
        assert model.log == ["stopped"]
        assert stream.trail().rounds[-1].text

    asyncio.run(main())


def test_a_stream_has_its_response_after_its_with() -> None:
    """A completed stream keeps its response; an unread one sends nothing."""

    async def main() -> str:
        async with ChatClient.create(ScriptedModel("Hello")).prompt("Hi").astream() as stream:
            assert [piece async for piece in stream]
        return stream.response.chat_response.text

    with ChatClient.create(ScriptedModel("Hello")).prompt("Hi").stream() as stream:
        assert "".join(stream) == "Hello"
    with (
        pytest.warns(RuntimeWarning, match="nothing was sent"),
        ChatClient.create(ScriptedModel()).prompt("Hi").stream(),
    ):
        pass

    assert stream.response.chat_response.text == "Hello"
    assert asyncio.run(main()) == "Hello"


def test_an_abandoned_stream_ends() -> None:
    """A stream that is used after its `with` block is closed when it is collected."""
    model = Endless()
    stream = ChatClient.create(model).prompt("Hi").stream()
    with stream:
        pass
    for _piece in stream:
        break

    assert model.log == ["stopped"]
    assert stream.trail().rounds


def test_a_stream_that_is_being_consumed_is_not_entered() -> None:
    """`with` has to be entered before the first piece is read."""

    async def main() -> None:
        stream = ChatClient.create(ScriptedModel("Hello")).prompt("Hi").astream()
        async with stream.content() as pieces:
            assert await anext(pieces) == "Hell"
            with pytest.raises(UsageError, match="`with` comes before"):
                await stream.__aenter__()

    stream = ChatClient.create(ScriptedModel("Hello")).prompt("Hi").stream()
    assert "".join(stream) == "Hello"
    with pytest.raises(UsageError, match="`with` comes before"), stream:
        pass
    asyncio.run(main())


def test_an_async_stream_has_one_consumer() -> None:
    """A second consumer gets an error, and the first continues."""

    async def main() -> list[str]:
        model = Slow()
        pieces, waiting = await _begun(model)
        with pytest.raises(RuntimeError, match="another task waits"):
            await anext(pieces)
        model.go_on.set()
        return [await waiting, *[piece async for piece in pieces]]

    assert asyncio.run(main()) == ["three"]


@pytest.mark.feature("answer-heartbeat-while-model-thinks")
def test_a_stream_survives_asyncio_wait() -> None:
    """A heartbeat waits for a task with a time-out, which does not cancel the task."""

    async def main() -> list[str]:
        model = Slow()
        pieces, waiting = await _begun(model)
        done, _ = await asyncio.wait({waiting}, timeout=0.01)
        assert not done
        model.go_on.set()
        return [await waiting, *[piece async for piece in pieces]]

    assert asyncio.run(main()) == ["three"]


@pytest.mark.feature("answer-heartbeat-while-model-thinks")
def test_a_stream_with_a_cancelled_consumer() -> None:
    """A time-out around `anext` ends the request, and further reading raises an error."""

    async def main() -> None:
        pieces, waiting = await _begun(Slow())
        waiting.cancel()
        await asyncio.wait({waiting})
        with pytest.raises(UsageError, match="wait for a task"):
            await anext(pieces)

    asyncio.run(main())


@tool(effect="read")
def look() -> str:
    """Look something up."""
    return "found"


@tool
def pay() -> str:
    """Pay."""
    return "paid"


async def answer_what_was_found(request: ChatClientRequest, call_next: Next) -> Any:
    """Answer in the model's place once a tool has run."""
    if request.prompt.messages[-1].role == "tool":
        return ChatClientResponse(ChatResponse.of("It is found."))
    return await call_next(request)


def test_an_advisors_answer_after_a_round_is_streamed(ask: Ask) -> None:
    """Text of the model before the tools ran is not the answer."""
    model = ScriptedModel(["Let me look. ", call("look")])
    builder = ChatClient.builder(model).default_tools(look)
    result = ask(builder.default_advisors(answer_what_was_found).build().prompt("x"))

    assert result.response.chat_response.text == "It is found."
    assert result.text == ("Let me look. \n\nIt is found." if ask.streaming else "It is found.")


def test_the_text_of_a_suspended_turn_is_streamed_once(ask: Ask) -> None:
    """Also when other calls of the same message ran without approval."""
    model = ScriptedModel(["Let me see. ", call("look", id="a"), call("pay", id="b")])
    manager = ToolCallingManager(interceptors=[ToolApproval()])
    builder = ChatClient.builder(model).default_tools(look, pay).tool_calling_manager(manager)
    result = ask(builder.build().prompt("x"))

    assert result.waiting.pending
    assert result.text == "Let me see. "


@pytest.mark.parametrize("calls", [[call("pay")], [call("look"), call("pay")]])
def test_an_advisors_answer_after_a_failed_tool(ask: Ask, calls: Any) -> None:
    """It is streamed: the text of the model before the tool failed is not the answer."""

    async def apologise(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        try:
            return await call_next(request)
        except PermissionError:
            return ChatClientResponse(ChatResponse.of("Sorry."))

    async def refuse(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        if invocation.definition.name == "pay":
            raise PermissionError
        return await call_next(invocation)

    apologise.order = MEMORY_ORDER  # type: ignore[attr-defined]
    policy = ToolFailurePolicy(raise_on=(PermissionError,))
    manager = ToolCallingManager(interceptors=[refuse], exception_processor=policy)
    builder = ChatClient.builder(ScriptedModel(["Let me see. ", *calls])).default_tools(look, pay)
    client = builder.tool_calling_manager(manager).default_advisors(apologise).build()
    result = ask(client.prompt("x"))

    assert result.response.chat_response.text == "Sorry."
    assert result.text == ("Let me see. \n\nSorry." if ask.streaming else "Sorry.")


def test_a_failed_stream_raises_for_its_response() -> None:
    """As a call does, for every accessor; its trail has what happened before."""
    client = ChatClient.create(ScriptedModel(OverloadedError("busy")))
    stream = client.prompt("x").stream()
    with pytest.raises(OverloadedError) as failed:
        list(stream)

    for ask_for in (lambda: stream.response, stream.messages, stream.pending_turn):
        with pytest.raises(OverloadedError) as again:
            ask_for()
        assert again.value is failed.value
    assert len(stream.trail().rounds) == 1


def test_a_failed_async_stream_raises_for_its_response() -> None:
    """The same on a loop."""

    async def main() -> None:
        stream = ChatClient.create(ScriptedModel(OverloadedError("busy"))).prompt("x").astream()
        with pytest.raises(OverloadedError):
            async for _ in stream:
                pass
        with pytest.raises(OverloadedError, match="busy"):
            _ = stream.response

    asyncio.run(main())


def test_text_beside_tool_calls_is_streamed_once(ask: Ask) -> None:
    """The calls are not run here, so the message is the answer."""
    model = ScriptedModel(["Let me see. ", call("look")])
    client = ChatClient.builder(model).default_tools(look).tool_calling(False).build()

    assert ask(client.prompt("x")).text == "Let me see. "


def test_an_advisor_may_continue_without_a_loop(ask: Ask) -> None:
    """An advisor may catch `BlockingCallError` and continue."""

    async def pause(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        with suppress(BlockingCallError):
            await asyncio.sleep(0)
        return await call_next(request)

    client = ChatClient.create(ScriptedModel("All is well."))

    assert ask(client.prompt("x").advisors(pause)).text == "All is well."


@pytest.mark.parametrize("ask", ["call", "stream"], indirect=True)
def test_an_advisor_that_insists_on_a_loop_fails(ask: Ask) -> None:
    """A second wait for a loop ends the request with the error."""

    async def insist(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        for _ in range(2):
            with suppress(BlockingCallError):
                await asyncio.sleep(0)
        return await call_next(request)

    client = ChatClient.create(ScriptedModel("never"))
    with pytest.raises(BlockingCallError, match="acall"):
        ask(client.prompt("x").advisors(insist))


@pytest.mark.parametrize("ask", ["call", "stream"], indirect=True)
def test_an_advisor_that_needs_the_loop(ask: Ask) -> None:
    """The error of a blocking request names the alternatives."""

    async def own_task(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        asyncio.get_running_loop()
        return await call_next(request)

    client = ChatClient.create(ScriptedModel("never"))
    with pytest.raises(BlockingCallError, match="acall"):
        ask(client.prompt("x").advisors(own_task))


@pytest.mark.parametrize("seconds", [0, 0.01])
def test_cleanup_that_needs_the_loop(seconds: float) -> None:
    """When a blocking stream is left, the error is raised and other cleanup still runs."""
    log: list[str] = []

    async def outer(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        try:
            return await call_next(request)
        finally:
            log.append("outer")

    async def inner(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        try:
            return await call_next(request)
        finally:
            await asyncio.sleep(seconds)

    client = ChatClient.create(ScriptedModel("one two"))
    pieces = client.prompt("x").advisors(outer, inner).stream().content()
    next(pieces)
    with pytest.raises(BlockingCallError, match="acall"):
        pieces.close()

    assert log == ["outer"]


@pytest.mark.parametrize("way", ["stream", "astream"])
def test_a_stream_is_usable_after_a_type_error(way: str) -> None:
    """The error was raised before anything was sent."""
    stream = getattr(ChatClient.create(ScriptedModel("Hello.")).prompt("x"), way)()
    with pytest.raises(UsageError, match="no model can be asked"):
        stream.entity(threading.Lock)

    async def consume() -> list[str]:
        return [piece async for piece in stream]

    pieces = list(stream) if way == "stream" else asyncio.run(consume())
    assert "".join(pieces) == "Hello."
    with pytest.raises(UsageError, match="consumed once"):
        stream.content()


def test_stop_iteration_in_an_advisor_is_an_error(ask: Ask) -> None:
    """A mistake like `await anext(rows)` is reported in all four modes."""

    async def rows() -> AsyncGenerator[int, None]:
        nothing: list[int] = []
        for row in nothing:
            yield row

    async def audit(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        response = await call_next(request)
        await anext(rows())
        return response

    client = ChatClient.create(ScriptedModel("Hello."))
    mistake = RuntimeError if ask.mode == "astream" else StopAsyncIteration
    with pytest.raises(mistake) as caught:
        ask(client.prompt("x").advisors(audit))

    assert isinstance(caught.value.__cause__ or caught.value, StopAsyncIteration)


class Rewriting:
    """Advisor that changes the answer after the model has streamed it."""

    order = 10

    def __init__(self, text: str) -> None:
        self.text = text

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return another text."""
        response = await call_next(request)
        return response.mutate(chat_response=ChatResponse.of(self.text))


@pytest.mark.parametrize("first", [[], [["Let me look. ", call("look")]]])
def test_replaced_text(ask: Ask, first: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    """A stream has an event for replaced text, and a warning names the advisor."""
    model = ScriptedModel(*first, "The model's answer")
    builder = ChatClient.builder(model).default_tools(look)
    # Outside of the tool loop.
    rewriting = Rewriting("Another answer")
    rewriting.order = TOOL_CALLING_ORDER - 5
    result = ask(builder.default_advisors(rewriting).build().prompt("x"))

    assert result.response.chat_response.text == "Another answer"
    replaced = [event for event in result.events if isinstance(event, TextReplaced)]
    assert replaced == ([TextReplaced("Another answer")] if ask.streaming else [])
    assert ("text was changed after it was streamed" in caplog.text) == ask.streaming
    assert ("Rewriting" in caplog.text) == ask.streaming


def test_unchanged_text_is_not_replaced(ask: Ask) -> None:
    model = ScriptedModel(["Let me look. ", call("look")], "Found.")
    result = ask(ChatClient.builder(model).default_tools(look).build().prompt("x"))

    assert not any(isinstance(event, TextReplaced) for event in result.events)
    assert result.text == ("Let me look. \n\nFound." if ask.streaming else "Found.")


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["One.", "Two.", "Three."], "One.\n\nTwo.\n\nThree."),
        (["", "Two.", "Three."], "Two.\n\nThree."),
        (["One.", "", "Three."], "One.\n\nThree."),
        (["One.", "\n\nTwo.", "Three."], "One.\n\nTwo.\n\nThree."),
    ],
)
def test_blank_line_between_rounds(ask: Ask, texts: list[str], expected: str) -> None:
    *rounds, answer = texts
    turns: list[Any] = [[text, call("look", {"n": n})] for n, text in enumerate(rounds)]
    model = ScriptedModel(*turns, answer)
    result = ask(ChatClient.builder(model).default_tools(look).build().prompt("x"))

    assert result.text == (expected if ask.streaming else answer)


def test_blank_line_is_no_part_of_an_entity(ask: Ask) -> None:
    model = ScriptedModel(["One moment.", call("look")], "a plain text")
    client = ChatClient.builder(model).default_tools(look).build()
    if ask.streaming:
        *_, value = client.prompt("x").stream().entity(str)
        assert value == "a plain text"
    else:
        assert client.prompt("x").call().entity(str) == "a plain text"
