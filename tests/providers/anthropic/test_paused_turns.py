"""Turns with server tools of Anthropic: pauses and containers."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from chatclient import ChatClient, Prompt, UserMessage, tool
from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor
from chatclient.advisors.tool_loop.advisor import Steering
from chatclient.chat.events import RoundEnded
from chatclient.chat.response import Usage
from chatclient.errors import OverloadedError, StreamInterruptedError, UsageError
from chatclient.memory import InMemoryChatMemoryRepository, MessageWindowChatMemory
from chatclient.providers.anthropic.model import AnthropicChatOptions
from chatclient.testing import Ask
from tests.support.messages_server import (
    Json,
    MessagesServer,
    Serve,
    as_stream,
    message,
    messages_servers,
    text,
    thinking,
    tool_use,
)
from tests.support.replay import collect
from tests.support.servers import Reply

SEARCH = {"type": "web_search_20250305", "name": "web_search"}
CODE = {"type": "code_execution_20250825", "name": "code_execution"}
SKILLS = [{"type": "anthropic", "skill_id": "xlsx", "version": "latest"}]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start Messages API servers that are closed after the test."""
    with messages_servers() as start:
        yield start


@tool
def look() -> str:
    """Look around."""
    return "seen"


def search_blocks(id: str) -> list[Json]:
    """Return the blocks of a web search."""
    call = {"type": "server_tool_use", "id": id, "name": "web_search", "input": {"query": id}}
    return [call, {"type": "web_search_tool_result", "tool_use_id": id, "content": []}]


def paused(*content: str | Json, **more: Any) -> Json:
    return message(*content, stop_reason="pause_turn", **more)


FIRST = [thinking("Hm."), text("I search. "), *search_blocks("s1")]
SECOND = [text("And again. "), *search_blocks("s2")]


def search_client(server: MessagesServer, **options: Any) -> ChatClient:
    """Return a client whose model may search the web."""
    chosen = AnthropicChatOptions(server_tools=[SEARCH], **options)
    return ChatClient.create(server.model(options=chosen, max_retries=0))


# --- pauses ---------------------------------------------------------------------------------


@pytest.mark.feature("provider-server-tool-results-aimessage")
def test_paused_turn_is_continued(ask: Ask, serve: Serve) -> None:
    """Each continuation sends all previous content unchanged, and one answer results."""
    server = serve(paused(*FIRST), paused(*SECOND, id="msg_2"), message("Found.", id="msg_3"))
    result = ask(search_client(server).prompt("?"))
    response = result.response.chat_response
    sent = [request["messages"] for request in server.requests]
    question = {"role": "user", "content": [text("?")]}

    assert result.text == response.text == "I search. And again. Found."
    assert (response.finish_reason, response.paused) == ("stop", False)
    assert response.metadata.id == "msg_3"
    assert sent[1] == [question, {"role": "assistant", "content": FIRST}]
    assert sent[2] == [question, {"role": "assistant", "content": [*FIRST, *SECOND]}]
    assert len(sent) == 3
    assert len([event for event in result.events if isinstance(event, RoundEnded)]) in (0, 1)


def test_usage_of_a_paused_turn(ask: Ask, serve: Serve) -> None:
    """Usage sums all parts; native usage lists them."""
    server = serve(paused("One. "), paused("Two. "), "Three.")
    response = ask(search_client(server).prompt("?")).response.chat_response

    requests = response.usage.native["requests"]

    assert replace(response.usage, native={}, cost=None) == Usage(3 * 1110, 15, 300, 3000)
    assert [each["cache_read_input_tokens"] for each in requests] == [100, 100, 100]


def test_native_usage_without_a_pause(ask: Ask, serve: Serve) -> None:
    """Without a pause the native usage is in the metadata."""
    response = ask(search_client(serve("Found.")).prompt("?")).response.chat_response

    assert response.usage.native["cache_read_input_tokens"] == 100


@pytest.mark.parametrize(("most", "requests"), [(None, 9), (2, 3), (0, 1)])
def test_continuation_limit(ask: Ask, serve: Serve, most: int | None, requests: int) -> None:
    """After the maximum of continuations the paused answer is returned."""
    server = serve(paused("On. "))
    answer = ask(search_client(server, max_continuations=most).prompt("?"))

    assert len(server.requests) == requests
    assert answer.response.chat_response.paused
    assert answer.text == "On. " * requests


def test_invalid_continuation_limit() -> None:
    """An invalid limit raises before a request is sent."""
    with pytest.raises(UsageError, match="max_continuations must be at least 0"):
        AnthropicChatOptions(max_continuations=-1)


def test_application_tools_in_a_paused_turn(ask: Ask, serve: Serve) -> None:
    """Application tools are run first, as the API requires their results."""
    server = serve(paused("I look. ", tool_use("t1", "look", {})), "Found.")
    answer = ask(search_client(server).prompt("?").tools(look))

    assert answer.response.chat_response.text == "Found."
    assert server.requests[1]["messages"][-1]["content"][0]["tool_use_id"] == "t1"


def test_tool_call_after_a_pause(ask: Ask, serve: Serve) -> None:
    """Content before and after the pause forms one message of the conversation."""
    called = message(text("I look. "), tool_use("t1", "look", {}))
    server = serve(paused(*FIRST), called, "Found.")
    answer = ask(search_client(server).prompt("?").tools(look))
    kinds = [block["type"] for block in server.requests[2]["messages"][1]["content"]]

    assert answer.response.chat_response.text == "Found."
    assert kinds == [*(block["type"] for block in FIRST), "text", "tool_use"]
    assert answer.response.chat_response.usage.output_tokens == 15


def test_paused_turn_in_memory(ask: Ask, serve: Serve) -> None:
    """Memory stores a paused turn as one answer."""
    memory = MessageWindowChatMemory(InMemoryChatMemoryRepository())
    server = serve(paused(*FIRST), "Found.", "Bye.")
    advised = (
        search_client(server).mutate().default_advisors(MessageChatMemoryAdvisor(memory)).build()
    )
    ask(advised.prompt("?").conversation("c"))
    ask(advised.prompt("Thanks").conversation("c"))

    messages = server.requests[2]["messages"]
    assert [turn["role"] for turn in messages] == ["user", "assistant", "user"]
    assert messages[1]["content"] == [*FIRST, text("Found.")]


def test_interrupted_continuation(serve: Serve) -> None:
    """The error has the content from before and after the pause."""
    broken = as_stream(message("Found the thing."))
    broken = broken[: broken.index(b"event: content_block_stop")]
    client = search_client(serve(paused("I search. "), Reply(broken)))
    with pytest.raises(StreamInterruptedError) as caught:
        list(client.prompt("?").stream().content())

    assert caught.value.partial is not None
    assert caught.value.partial.text == "I search. Found the thing."


def test_failed_continuation(ask: Ask, serve: Serve) -> None:
    """An error in a continuation is raised."""
    with pytest.raises(OverloadedError):
        ask(search_client(serve(paused("I search. "), Reply(b"", 529))).prompt("?"))


def test_continuation_without_client(serve: Serve) -> None:
    """The model continues paused turns also without a client."""
    model = serve(paused("I search. "), "Found.").model()
    prompt = Prompt([UserMessage("?")], AnthropicChatOptions(server_tools=[SEARCH]))
    streamed = serve(paused("I search. "), "Found.").model()

    assert model.call(prompt).text == "I search. Found."
    assert collect(streamed.stream(prompt)).text == "I search. Found."


# --- containers -----------------------------------------------------------------------------


def in_container(id: str, *content: str | Json, **more: Any) -> Json:
    return message(*content, container={"id": id, "expires_at": "2030-01-01T00:00:00Z"}, **more)


def containers(server: MessagesServer) -> list[Any]:
    return [request.get("container") for request in server.requests]


def running_code(server: MessagesServer, **options: Any) -> ChatClient:
    chosen = AnthropicChatOptions(server_tools=[CODE], **options)
    return ChatClient.create(server.model(options=chosen))


CALL = tool_use("t1", "look", {}, caller={"type": "code_execution_20250825", "tool_id": "s1"})


def test_container_of_a_waiting_tool(ask: Ask, serve: Serve) -> None:
    """Tool results name the container of the code; the next turn has another one."""
    again = in_container("c1", {**CALL, "id": "t2"})
    server = serve(in_container("c1", CALL), again, in_container("c1", "Seen."), "Bye.")
    client = running_code(server)
    answer = ask(client.prompt("?").tools(look)).answer
    ask(client.prompt(answer.messages()).user("Thanks").tools(look))

    assert containers(server) == [None, "c1", "c1", None]


def test_container_of_a_paused_turn(ask: Ask, serve: Serve) -> None:
    """A continuation uses the container with its skills."""
    first = in_container("c1", "On. ", stop_reason="pause_turn")
    server = serve(first, "Done.")
    ask(running_code(server, extra={"container": {"skills": SKILLS}}).prompt("?"))

    assert containers(server) == [{"skills": SKILLS}, {"id": "c1", "skills": SKILLS}]


@pytest.mark.parametrize("given", ["mine", {"id": "mine", "skills": SKILLS}])
def test_explicit_container(ask: Ask, serve: Serve, given: Any) -> None:
    """A container of the options takes precedence."""
    server = serve(in_container("c1", CALL), "Seen.")
    ask(running_code(server, extra={"container": given}).prompt("?").tools(look))

    assert containers(server) == [given, given]


def test_container_with_messages_in_between(ask: Ask, serve: Serve) -> None:
    """A user message during the turn keeps the container."""
    steering = Steering()

    @tool
    def look() -> str:
        """Look around."""
        steering.send("Hurry!")
        return "seen"

    server = serve(in_container("c1", CALL), "Seen.")
    client = running_code(server).mutate().default_advisors(steering).build()
    ask(client.prompt("?").tools(look))

    assert containers(server) == [None, "c1"]


def test_no_container_without_server_tools(ask: Ask, serve: Serve) -> None:
    """A request without server tools names no container."""
    server = serve(in_container("c1", CALL), "Seen.")
    ask(ChatClient.create(server.model()).prompt("?").tools(look))

    assert containers(server) == [None, None]
