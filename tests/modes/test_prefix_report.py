"""What of a prompt a provider can cache: the first change, who made it, and the cached share."""

from dataclasses import dataclass
from typing import Any

import pytest

from chatclient import (
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    Message,
    Next,
    Prompt,
    SystemMessage,
    tool,
)
from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor
from chatclient.chat.response import Usage
from chatclient.chat.serialization import message_to_dict
from chatclient.memory import MessageWindowChatMemory
from chatclient.observability.prefix import PrefixReport
from chatclient.observability.trail import Trail
from chatclient.testing import Answer, Ask, ScriptedModel, assert_stable_prefix, call
from chatclient.tools import ToolResult


@tool
def look_up(word: str) -> str:
    """Look a word up."""
    return word


@tool
def other() -> str:
    """Do something else."""
    return ""


@dataclass
class Clock:
    """Adds something to the system text that differs each time."""

    name: str = "Clock"
    order: int = 0
    time: int = 0

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        self.time += 1
        prompt = request.prompt
        now = SystemMessage(f"It is {self.time} o'clock.")
        changed = Prompt([now, *prompt.messages], prompt.options)
        return await call_next(request.mutate(prompt=changed))


def remembering(*answers: Answer, keep: int = 20) -> ChatClient:
    """Return a client with a memory, a tool and scripted answers."""
    memory = MessageWindowChatMemory(max_messages=2 * keep, keep=keep)
    return (
        ChatClient.builder(ScriptedModel(*(answers or ["ok"] * 30)))
        .default_system("Be brief.")
        .default_tools(look_up)
        .default_advisors(MessageChatMemoryAdvisor(memory))
        .build()
    )


def trail_of(ask: Ask, client: ChatClient, text: str) -> Trail:
    answer = ask(client.prompt(text).conversation("c")).answer
    trail: Trail = answer.trail()
    return trail


def test_a_conversation_with_tools_can_be_cached(ask: Ask) -> None:
    """Each request begins with the one before; only what is new is not in the cache."""
    client = remembering(call("look_up", '{"word": "x"}', id="1"), "ok", "ok")
    first, second = (trail_of(ask, client, text) for text in ("one", "two"))
    report = PrefixReport.between(first, second)

    assert report.stable
    assert 0.5 < report.cached < 1
    assert "begins with the previous one" in str(report)
    assert "changed" not in str(first)


def test_the_first_change_and_who_made_it(ask: Ask) -> None:
    """A tool, the system text or a message, and the advisor that put it there."""
    client = remembering(*["ok"] * 9)
    clocked = client.mutate().default_advisors(Clock()).build()
    plain = trail_of(ask, client, "one")
    tools = client.prompt("two").conversation("c").tools(other, look_up)
    one, two = (trail_of(ask, clocked, text) for text in ("three", "four"))
    by_clock = PrefixReport.between(one, two)
    by_request = PrefixReport.between(plain, ask(tools).answer.trail())

    assert by_clock.before is not None
    assert by_clock.after is not None
    assert (by_clock.before.kind, by_clock.number, by_clock.advisor) == ("system text", 1, "Clock")
    assert "1 o'clock" in by_clock.before.text
    assert "2 o'clock" in by_clock.after.text
    assert by_request.before is not None
    assert (by_request.before.kind, by_request.number, by_request.advisor) == ("tool", 1, None)
    assert by_request.cached == 0
    with pytest.raises(ValueError, match="without a model call"):
        PrefixReport.between(Trail(), two)


def test_a_missing_message(ask: Ask) -> None:
    """A memory that forgot has nothing at the place of the message."""
    client = remembering("ok", "ok")
    first, second = (trail_of(ask, client, text) for text in ("one", "two"))
    report = PrefixReport.between(second, first)

    assert not report.stable
    assert report.after is None
    assert report.advisor is None
    assert "became nothing" in str(report)


def test_the_trail_reports_a_changed_beginning(ask: Ask) -> None:
    """Between the rounds of a turn, for they share their beginning otherwise."""
    client = (
        ChatClient.builder(ScriptedModel(call("look_up", '{"word": "x"}', id="1"), "ok"))
        .default_tools(look_up)
        .default_advisors(Clock())
        .build()
    )
    trail = ask(client.prompt("one")).answer.trail()

    assert "    the prompt changed from system text 1 on by Clock (" in str(trail)


def test_the_trail_reads_each_message_once(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text of a trail takes time for each message, not for each message of each round."""
    read: list[Message] = []

    def counted(message: Message) -> dict[str, Any]:
        read.append(message)
        return message_to_dict(message)

    monkeypatch.setattr("chatclient.observability.prefix.message_to_dict", counted)
    calls = [call("look_up", {"word": str(n)}, id=f"c{n}") for n in range(10)]
    trail = trail_of(ask, remembering(*calls, "Done."), "Ten words.")
    str(trail)

    assert len(read) == 22  # system text, question, and ten calls with their results


def test_cached_tokens_are_shown(ask: Ask) -> None:
    """The trail has the share of the input that came from the cache, if it is reported."""
    usage = Usage(input_tokens=200, output_tokens=5, cache_read_tokens=150)
    client = ChatClient.create(ScriptedModel("ok", usage=usage))
    trail = ask(client.prompt("?")).answer.trail()

    assert trail.usage.cached_share == 0.75
    assert str(trail).splitlines()[-1] == "in all: 200 (75% cached) + 5 tokens"
    assert Usage(input_tokens=1).cached_share is None
    assert Usage(cache_read_tokens=0).cached_share is None


def test_assertion_of_a_stable_prefix() -> None:
    """It holds a conversation, and names what broke the prefix."""
    texts = [str(number) for number in range(12)]
    reports = assert_stable_prefix(remembering(), texts)
    assert len(reports) == 11
    assert all(report.stable for report in reports)

    with pytest.raises(AssertionError, match="message 1 on by MessageChatMemoryAdvisor") as raised:
        assert_stable_prefix(remembering(keep=4), texts)
    assert str(raised.value).startswith("4 of 11 requests begin differently:\nrequest 6: ")
    assert_stable_prefix(remembering(keep=4), texts, breaks=4)
    with pytest.raises(AssertionError, match="begin differently, not 3 at most"):
        assert_stable_prefix(remembering(keep=4), texts, breaks=3)


def test_metadata_of_results_is_not_compared() -> None:
    """It is not sent, and may have no JSON form."""

    @tool
    def count(city: str) -> ToolResult:
        """Count."""
        return ToolResult(city, metadata={"row": object()})

    model = ScriptedModel(call("count", {"city": "a"}), call("count", {"city": "b"}), "ok")
    client = ChatClient.builder(model).default_tools(count).build()

    assert "count" in str(client.prompt("?").call().trail())


def test_a_changed_beginning_is_in_the_trail_of_the_next_turn(ask: Ask) -> None:
    """The line says since when, what changed first, who did it, and what is left."""
    client = remembering("one", "two", "three", keep=1)
    trails = []
    for text in ("first " * 20, "second " * 20, "third"):
        result = ask(client.prompt(text).conversation("c"))
        trails.append(str(result.response.trail))

    assert "since the turn before" not in trails[0] + trails[1]
    [line] = [each for each in trails[2].splitlines() if "since the turn before" in each]
    assert line.strip().startswith(
        "since the turn before, the prompt changed from message 1 on by MessageChatMemoryAdvisor ("
    )


def test_conversations_do_not_mix(ask: Ask) -> None:
    """Those with other ids, without any, and of other clients have other beginnings."""
    model = ScriptedModel(*["ok"] * 5)
    one = ChatClient.builder(model).default_system("One.").build()
    other = ChatClient.builder(model).default_system("Other.").build()
    requests = [
        *(one.prompt("a").conversation("1"), one.prompt("b").conversation("2")),
        *(one.prompt("c"), other.prompt("d").conversation("1")),
    ]

    assert not any("changed" in str(ask(each).response.trail) for each in requests)
    assert "from message 1 on" in str(ask(one.prompt("e").conversation("1")).response.trail)


def test_the_latest_conversations_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are forgotten."""
    monkeypatch.setattr("chatclient.observability.prefix._MOST_CONVERSATIONS", 2)
    client = ChatClient.create(ScriptedModel(*["ok"] * 9))

    def changed(text: str, conversation: str) -> bool:
        answer = client.prompt(text).conversation(conversation).call()
        return "changed" in str(answer.trail())

    assert [changed(text, id) for text, id in (("a", "1"), ("b", "2"), ("c", "3"))] == [False] * 3
    assert not changed("d", "1")
    assert changed("e", "3")
