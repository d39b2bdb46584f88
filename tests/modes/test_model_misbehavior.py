"""Nine ways a model or its caller may misbehave, against a server as strict as the providers.

In each, some framework loses the run, sends what the provider refuses, leaks what it should not,
or never ends. Here every one ends well, over real HTTP, in all four modes.
"""

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from chatclient import ChatClient, Message, UserMessage, tool
from chatclient.chat.events import RoundEnded
from chatclient.errors import DuplicateToolError
from chatclient.providers.openai.chat import OpenAIChatModel
from chatclient.testing import Ask
from chatclient.tools import FunctionToolCallback, ToolCallingManager, ToolLimits
from tests.support.servers import ChatServer, completion

Start = Callable[..., ChatServer]
Request = dict[str, Any]

SECRET = "postgres://admin:hunter2@10.0.0.7"


@tool
def get_weather(city: str, days: int = 1) -> str:
    """Return a forecast for a city."""
    return f"{days} sunny days in {city}"


@tool
def get_time(zone: str = "UTC") -> str:
    """Return the time."""
    return f"noon in {zone}"


@tool
def query() -> str:
    """Ask the database."""
    try:
        raise OSError(f"cannot reach {SECRET}")
    except OSError as error:
        raise RuntimeError("the database is not available") from error


def client_of(server: ChatServer, *tools: Any, **manager: Any) -> ChatClient:
    model = OpenAIChatModel("stub", api_key="k", base_url=server.url, max_retries=0)
    builder = ChatClient.builder(model).tool_calling_manager(ToolCallingManager(**manager))
    return builder.default_tools(*(tools or (get_weather, get_time, query))).build()


def wrong(times: int, name: str, arguments: str) -> list[Any]:
    """Return replies with the same mistake, and then an answer."""
    calls = [completion(None, (f"c{n}", name, arguments)) for n in range(times)]
    return [*calls, "recovered"]


def told(request: Request) -> list[str]:
    """Return the tool results in the last round of *request*."""
    messages = request["messages"]
    answers = itertools.takewhile(lambda message: message["role"] == "tool", reversed(messages))
    return [message["content"] for message in answers][::-1]


@pytest.mark.parametrize("times", [1, 3])
def test_an_unknown_tool(ask: Ask, chat_server: Start, times: int) -> None:
    """Each error result has the names of similar tools."""
    server = chat_server(*wrong(times, "get_wether", '{"city": "Bern"}'))
    with client_of(server) as client:
        result = ask(client.prompt("x"))

    assert result.text == "recovered"
    assert len(server.requests) == times + 1
    for request in server.requests[1:]:
        assert told(request)[0].startswith("There is no tool 'get_wether'; did you mean 'get_we")


@pytest.mark.parametrize("times", [1, 3])
def test_arguments_that_are_cut_off(ask: Ask, chat_server: Start, times: int) -> None:
    """If arguments are ambiguous, the model receives an error result, and the turn continues."""
    server = chat_server(*wrong(times, "get_weather", '{"city": "Bern", "days": '))
    with client_of(server) as client:
        result = ask(client.prompt("x"))

    assert result.text == "recovered"
    assert len(server.requests) == times + 1
    assert all("not valid JSON" in told(request)[0] for request in server.requests[1:])
    assert result.executions[0].tool_call.arguments == '{"city": "Bern", "days": '


@pytest.mark.parametrize("word", ["length", "model_length", "sensitive", "network_error"])
def test_a_call_that_the_server_reports_as_truncated(
    ask: Ask, chat_server: Start, word: str
) -> None:
    """With each finish reason for a truncated answer, arguments are not repaired."""
    cut, *others = wrong(1, "get_weather", '{"city": "Bern"')
    cut["choices"][0]["finish_reason"] = word
    server = chat_server(cut, *others)
    with client_of(server) as client:
        result = ask(client.prompt("x"))

    assert result.text == "recovered"
    assert told(server.requests[1])[0].startswith("The call of get_weather was cut off")


def test_arguments_of_which_only_the_end_is_missing(ask: Ask, chat_server: Start) -> None:
    """Unambiguous arguments are repaired, without another round."""
    server = chat_server(*wrong(1, "get_weather", '{"city": "Bern"'))
    with client_of(server) as client:
        ask(client.prompt("x"))

    assert told(server.requests[1]) == ["1 sunny days in Bern"]


def test_missing_and_additional_arguments(ask: Ask, chat_server: Start) -> None:
    """The error result names the problem of each field."""
    server = chat_server(*wrong(1, "get_weather", '{"town": "Bern", "days": "two"}'))
    with client_of(server) as client:
        result = ask(client.prompt("x"))

    [text] = told(server.requests[1])
    assert "city: missing, but required" in text
    assert "town: unknown; known are city, days" in text
    assert "days: should be a valid integer" in text
    assert result.text == "recovered"


def test_an_exception_with_a_secret_in_its_cause(ask: Ask, chat_server: Start) -> None:
    """The model receives the message of the exception, and the cause stays in the process."""
    server = chat_server(*wrong(1, "query", "{}"))
    with client_of(server) as client:
        result = ask(client.prompt("x"))

    assert result.text == "recovered"
    assert told(server.requests[1]) == ["the database is not available"]
    assert "hunter2" not in json.dumps(server.requests) + str(result.events)
    error = result.executions[0].error
    assert error is not None
    assert SECRET in str(error.__cause__)


def test_two_tools_of_one_name(ask: Ask, chat_server: Start) -> None:
    """The request is refused with both tools named; a policy can keep one of them."""
    server = chat_server(*wrong(1, "get_time", "{}"))
    twin = FunctionToolCallback(lambda: "midnight", name="get_time")
    with client_of(server, get_weather) as client:
        with pytest.raises(DuplicateToolError, match="get_time"):
            ask(client.prompt("x").tools(get_time, twin))
        assert server.requests == []
        last = client.mutate().duplicate_tools("last").build()
        ask(last.prompt("x").tools(get_time, twin))

    assert told(server.requests[1]) == ["midnight"]


def endless(request: Request) -> Any:
    """Call a tool as long as one is offered."""
    if request.get("tool_choice") == "none":
        return "This is what I know so far."
    number = len(request["messages"])
    return completion(None, (f"c{number}", "get_weather", json.dumps({"city": f"City {number}"})))


@pytest.mark.parametrize("on_exceeded", ["partial", "final_answer", "tell_model"])
def test_a_model_that_never_stops_calling(ask: Ask, chat_server: Start, on_exceeded: Any) -> None:
    """The turn ends after its limit, with a reason, a text and every call answered."""
    server = chat_server(endless)
    limits = ToolLimits(max_rounds=60, on_exceeded=on_exceeded)
    with client_of(server, limits=limits) as client:
        result = ask(client.prompt("x"))

    assert result.response.chat_response.finish_reason == "tool_call_limit_exceeded"
    expected = {"partial": 41, "final_answer": 42, "tell_model": 61}
    assert len(server.requests) == expected[on_exceeded]
    words = "limit (40) exceeded" if on_exceeded == "partial" else "what I know so far"
    assert words in result.text


def test_a_model_that_repeats_itself_for_ever(ask: Ask, chat_server: Start) -> None:
    """Identical calls end the turn earlier."""
    server = chat_server(completion(None, ("c1", "get_weather", '{"city": "Bern"}')))
    with client_of(server) as client:
        result = ask(client.prompt("x"))

    assert len(server.requests) == 6
    assert result.text.startswith("No progress")


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_two_hundred_parallel_calls(ask: Ask, chat_server: Start, kind: str) -> None:
    """All run up to the limit of parallel calls; results are in order."""
    lock, running, peak = threading.Lock(), 0, 0

    @contextmanager
    def counted() -> Iterator[None]:
        nonlocal running, peak
        with lock:
            running += 1
            peak = max(peak, running)
        yield
        with lock:
            running -= 1

    @tool
    def plain(n: int) -> int:
        with counted():
            time.sleep(0.001)
        return n

    @tool(name="async")
    async def waits(n: int) -> int:
        with counted():
            await asyncio.sleep(0.001)
        return n

    calls = [(f"c{n}", kind, f'{{"n": {n}}}') for n in range(200)]
    server = chat_server(completion(None, *calls), "done")
    limits = ToolLimits(max_calls_per_tool=None, max_total_calls=None)
    with client_of(server, plain, waits, limits=limits, blocking_concurrency=4) as client:
        result = ask(client.prompt("x"))

    assert result.text == "done"
    assert told(server.requests[1]) == [str(n) for n in range(200)]
    assert 1 < peak <= (4 if ask.blocking else 8)


def test_two_hundred_calls_against_the_default_limits(ask: Ask, chat_server: Start) -> None:
    """By default forty run, and the turn ends with their results."""
    calls = [("get_weather", f'{{"city": "{n}"}}') for n in range(200)]
    server = chat_server(completion(None, *((f"c{n}", *made) for n, made in enumerate(calls))))
    with client_of(server) as client:
        result = ask(client.prompt("x"))
    answer = result.response.chat_response

    assert answer.finish_reason == "tool_call_limit_exceeded"
    assert len(answer.generations[0].metadata["partial_tool_responses"]) == 40
    assert len(result.executions) == 200


# --- cancelled during a tool, then a new turn on the same conversation ---


async def cancel(
    client: ChatClient, history: list[Message], begun: asyncio.Event, way: str
) -> None:
    """Start a request, and cancel it while a tool runs."""

    async def run() -> None:
        if way == "acall":
            await client.prompt(history).acall()
            return
        async with client.prompt(history).astream().events() as events:
            async for event in events:
                if way == "left" and isinstance(event, RoundEnded):
                    await begun.wait()
                    return

    task = asyncio.create_task(run())
    await begun.wait()
    if way != "left":
        task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() or way == "left"


@pytest.mark.parametrize("way", ["acall", "astream", "left"])
def test_cancelled_during_a_tool_and_repeated(chat_server: Start, way: str) -> None:
    """The conversation is unchanged, the next turn is accepted, and nothing is left running."""
    ended: list[str] = []

    async def main() -> tuple[str, int]:
        begun = asyncio.Event()

        @tool
        async def slow() -> None:
            begun.set()
            try:
                await asyncio.sleep(30)
            finally:
                ended.append("slow")

        history: list[Message] = [UserMessage("Do it.")]
        async with client_of(server, slow, get_time) as client:
            await cancel(client, history, begun, way)
            history.append(UserMessage("Never mind. What time is it?"))
            text = await client.prompt(history).acall().content()
            return text, len(asyncio.all_tasks()) - 1

    calls = [("c1", "get_time", "{}"), ("c2", "slow", "{}")]
    server = chat_server(completion(None, *calls), "It is noon.")

    assert asyncio.run(main()) == ("It is noon.", 0)
    assert ended == ["slow"]
    assert [len(request["messages"]) for request in server.requests] == [1, 2]


@pytest.mark.parametrize("way", ["call", "stream", "left"])
def test_interrupted_during_a_tool_and_repeated(chat_server: Start, way: str) -> None:
    """The same in blocking requests, by `KeyboardInterrupt` or by closing the stream."""
    calls = [("c1", "get_time", "{}"), ("c2", "interrupted", "{}")]
    server = chat_server(completion(None, *calls), "It is noon.")
    history: list[Message] = [UserMessage("Do it.")]

    @tool
    def interrupted() -> None:
        raise KeyboardInterrupt

    with client_of(server, get_time, interrupted) as client:
        if way == "left":
            events = client.prompt(history).stream().events()
            assert any(isinstance(event, RoundEnded) for event in events)
            events.close()
        else:
            request = client.prompt(history)
            with pytest.raises(KeyboardInterrupt):
                request.call().content() if way == "call" else list(request.stream())
        history.append(UserMessage("Never mind. What time is it?"))
        assert client.prompt(history).call().content() == "It is noon."

    assert [len(request["messages"]) for request in server.requests] == [1, 2]


# --- a blocking call inside a running loop ---


@pytest.mark.parametrize("way", ["call", "stream"])
def test_a_blocking_call_inside_a_running_loop(chat_server: Start, way: str) -> None:
    """It works, as in a notebook, with plain and asynchronous tools."""

    @tool
    async def get_date() -> str:
        await asyncio.sleep(0.001)
        return "Tuesday"

    calls = [("c1", "get_time", "{}"), ("c2", "get_date", "{}")]
    server = chat_server(completion(None, *calls), "Tuesday noon.")

    async def main() -> str:
        with client_of(server, get_time, get_date) as client:
            request = client.prompt("x")
            return request.call().content() if way == "call" else "".join(request.stream())

    assert asyncio.run(main()) == "Tuesday noon."
    assert told(server.requests[1]) == ["noon in UTC", "Tuesday"]
