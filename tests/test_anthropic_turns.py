"""Turns in which Anthropic runs tools of its own: their pauses, and their containers."""

from collections.abc import Iterator
from typing import Any

import pytest
from conftest import Ask
from messages_server import (
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
from replay import collect
from servers import Reply

from chatclient import ChatClient, Prompt, UserMessage
from chatclient.advisors.memory import MessageChatMemoryAdvisor
from chatclient.advisors.steering import Steering
from chatclient.errors import OverloadedError, StreamInterruptedError, UsageError
from chatclient.events import RoundEnded
from chatclient.memory import InMemoryChatMemoryRepository, MessageWindowChatMemory
from chatclient.providers.anthropic import AnthropicChatOptions
from chatclient.response import Usage
from chatclient.tools import tool

SEARCH = {"type": "web_search_20250305", "name": "web_search"}
CODE = {"type": "code_execution_20250825", "name": "code_execution"}
SKILLS = [{"type": "anthropic", "skill_id": "xlsx", "version": "latest"}]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers that speak the Messages API; all are gone after the test."""
    with messages_servers() as start:
        yield start


@tool
def look() -> str:
    """Look around."""
    return "seen"


def searched(id: str) -> list[Json]:
    """Return what the API tells of a search."""
    call = {"type": "server_tool_use", "id": id, "name": "web_search", "input": {"query": id}}
    return [call, {"type": "web_search_tool_result", "tool_use_id": id, "content": []}]


def paused(*content: str | Json, **more: Any) -> Json:
    return message(*content, stop_reason="pause_turn", **more)


FIRST = [thinking("Hm."), text("I search. "), *searched("s1")]
SECOND = [text("And again. "), *searched("s2")]


def searching(server: MessagesServer, **options: Any) -> ChatClient:
    """Return a client whose model may search the web."""
    chosen = AnthropicChatOptions(server_tools=[SEARCH], **options)
    return ChatClient.create(server.model(options=chosen, max_retries=0))


# --- pauses ---------------------------------------------------------------------------------


def test_a_paused_turn_is_gone_on_with_to_its_end(ask: Ask, serve: Serve) -> None:
    """One answer, of which the model is sent all that it has said so far, just as it said it."""
    server = serve(paused(*FIRST), paused(*SECOND, id="msg_2"), message("Found.", id="msg_3"))
    asked = ask(searching(server).prompt("?"))
    response = asked.response.chat_response
    sent = [request["messages"] for request in server.requests]
    question = {"role": "user", "content": [text("?")]}

    assert asked.text == response.text == "I search. And again. Found."
    assert (response.finish_reason, response.paused) == ("stop", False)
    assert response.metadata.id == "msg_3"
    assert sent[1] == [question, {"role": "assistant", "content": FIRST}]
    assert sent[2] == [question, {"role": "assistant", "content": [*FIRST, *SECOND]}]
    assert len(sent) == 3
    assert len([event for event in asked.events if isinstance(event, RoundEnded)]) in (0, 1)


def test_what_all_parts_of_a_paused_turn_have_cost_counts(ask: Ask, serve: Serve) -> None:
    """Whole or streamed; the provider's own figures are those of single requests."""
    server = serve(paused("One. "), paused("Two. "), "Three.")
    response = ask(searching(server).prompt("?")).response.chat_response

    assert response.usage == Usage(3 * 1110, 15, 300, 3000)


def test_the_provider_s_own_figures_are_there_where_nothing_pauses(ask: Ask, serve: Serve) -> None:
    """Just as of any answer."""
    response = ask(searching(serve("Found.")).prompt("?")).response.chat_response

    assert response.usage.native["cache_read_input_tokens"] == 100


@pytest.mark.parametrize(("most", "requests"), [(None, 9), (2, 3), (0, 1)])
def test_a_turn_that_only_pauses_is_handed_back(
    ask: Ask, serve: Serve, most: int | None, requests: int
) -> None:
    """After so many continuations, with all that was said; it can be sent back later."""
    server = serve(paused("On. "))
    answer = ask(searching(server, max_continuations=most).prompt("?"))

    assert len(server.requests) == requests
    assert answer.response.chat_response.paused
    assert answer.text == "On. " * requests


def test_a_number_of_continuations_has_to_be_one() -> None:
    """Others are refused before anything is sent."""
    with pytest.raises(UsageError, match="max_continuations must be at least 0"):
        AnthropicChatOptions(max_continuations=-1)


def test_tools_of_the_application_are_run_although_the_turn_has_paused(
    ask: Ask, serve: Serve
) -> None:
    """The API wants their results, and would refuse to go on without."""
    server = serve(paused("I look. ", tool_use("t1", "look", {})), "Found.")
    answer = ask(searching(server).prompt("?").tools(look))

    assert answer.response.chat_response.text == "Found."
    assert server.requests[1]["messages"][-1]["content"][0]["tool_use_id"] == "t1"


def test_a_round_with_tools_may_begin_after_a_pause(ask: Ask, serve: Serve) -> None:
    """What was said on both sides of the pause is one message of the conversation."""
    called = message(text("I look. "), tool_use("t1", "look", {}))
    server = serve(paused(*FIRST), called, "Found.")
    answer = ask(searching(server).prompt("?").tools(look))
    kinds = [block["type"] for block in server.requests[2]["messages"][1]["content"]]

    assert answer.response.chat_response.text == "Found."
    assert kinds == [*(block["type"] for block in FIRST), "text", "tool_use"]
    assert answer.response.chat_response.usage.output_tokens == 15


def test_memory_has_a_paused_turn_as_one_answer(ask: Ask, serve: Serve) -> None:
    """The next request of the conversation begins with it."""
    memory = MessageWindowChatMemory(InMemoryChatMemoryRepository())
    server = serve(paused(*FIRST), "Found.", "Bye.")
    advised = searching(server).mutate().default_advisors(MessageChatMemoryAdvisor(memory)).build()
    ask(advised.prompt("?").conversation("c"))
    ask(advised.prompt("Thanks").conversation("c"))

    said = server.requests[2]["messages"]
    assert [turn["role"] for turn in said] == ["user", "assistant", "user"]
    assert said[1]["content"] == [*FIRST, text("Found.")]


def test_a_continuation_that_breaks_keeps_what_was_said(serve: Serve) -> None:
    """The part before the pause and the part after it."""
    broken = as_stream(message("Found the thing."))
    broken = broken[: broken.index(b"event: content_block_stop")]
    client = searching(serve(paused("I search. "), Reply(broken)))
    with pytest.raises(StreamInterruptedError) as caught:
        list(client.prompt("?").stream().content())

    assert caught.value.partial is not None
    assert caught.value.partial.text == "I search. Found the thing."


def test_a_continuation_that_fails_fails_the_call(ask: Ask, serve: Serve) -> None:
    """Half an answer is not one."""
    with pytest.raises(OverloadedError):
        ask(searching(serve(paused("I search. "), Reply(b"", 529))).prompt("?"))


def test_a_model_that_is_asked_directly_goes_on_too(serve: Serve) -> None:
    """Without a client around it."""
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


def test_code_that_waits_for_a_tool_goes_on_in_its_container(ask: Ask, serve: Serve) -> None:
    """Without its name, the API refuses the results; and a turn to come is another one."""
    again = in_container("c1", {**CALL, "id": "t2"})
    server = serve(in_container("c1", CALL), again, in_container("c1", "Seen."), "Bye.")
    client = running_code(server)
    answer = ask(client.prompt("?").tools(look)).answer
    ask(client.prompt(answer.messages()).user("Thanks").tools(look))

    assert containers(server) == [None, "c1", "c1", None]


def test_a_paused_turn_goes_on_in_its_container(ask: Ask, serve: Serve) -> None:
    """With the skills that it was to have there."""
    first = in_container("c1", "On. ", stop_reason="pause_turn")
    server = serve(first, "Done.")
    ask(running_code(server, extra={"container": {"skills": SKILLS}}).prompt("?"))

    assert containers(server) == [{"skills": SKILLS}, {"id": "c1", "skills": SKILLS}]


@pytest.mark.parametrize("given", ["mine", {"id": "mine", "skills": SKILLS}])
def test_a_container_that_was_asked_for_is_kept(ask: Ask, serve: Serve, given: Any) -> None:
    """The application's word counts."""
    server = serve(in_container("c1", CALL), "Seen.")
    ask(running_code(server, extra={"container": given}).prompt("?").tools(look))

    assert containers(server) == [given, given]


def test_words_said_meanwhile_leave_code_in_its_container(ask: Ask, serve: Serve) -> None:
    """The turn is still the same."""
    steering = Steering()

    @tool
    def look() -> str:
        """Look around."""
        steering.say("Hurry!")
        return "seen"

    server = serve(in_container("c1", CALL), "Seen.")
    client = running_code(server).mutate().default_advisors(steering).build()
    ask(client.prompt("?").tools(look))

    assert containers(server) == [None, "c1"]


def test_where_no_tools_are_run_no_container_is_named(ask: Ask, serve: Serve) -> None:
    """A request without the provider's tools has no use for one."""
    server = serve(in_container("c1", CALL), "Seen.")
    ask(ChatClient.create(server.model()).prompt("?").tools(look))

    assert containers(server) == [None, None]
