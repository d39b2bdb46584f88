"""Turns with more tool results than fit into the model's context window."""

from typing import Any

import pytest

from chatclient import (
    AssistantMessage,
    ChatClient,
    ChatOptions,
    Message,
    Prompt,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
    tool,
)
from chatclient.advisors import ContextWindowAdvisor, MessageChatMemoryAdvisor
from chatclient.errors import ContextLengthExceededError
from chatclient.memory import MessageWindowChatMemory
from chatclient.memory.conversation import conversation_problems
from chatclient.memory.shortening import READ_RESULT, Shortening
from chatclient.memory.window import estimated_tokens
from chatclient.providers import FallbackChatModel
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import PendingTurn, ToolApproval, ToolCallingManager

PAGE = 10_000  # characters


class SmallModel(ScriptedModel):
    """A model that says how large its window is."""

    def context_window(self, options: ChatOptions) -> int:
        return 21_333


def page_text(page: int) -> str:
    return f"page {page} " + f"{page:02d}" * (PAGE // 2) + f" end of page {page}"


@tool(effect="read")
def read(page: int) -> str:
    """Read a page."""
    return page_text(page)


def reads(count: int) -> list[Any]:
    return [call("read", {"page": page}, id=f"c{page}") for page in range(1, count + 1)]


def client_of(model: ScriptedModel) -> ChatClient:
    return ChatClient.builder(model).default_tools(read).build()


def results(prompt: Prompt) -> list[str]:
    return [
        response.data
        for message in prompt.messages
        if isinstance(message, ToolResponseMessage)
        for response in message.responses
    ]


def size(prompt: Prompt) -> int:
    return sum(map(estimated_tokens, prompt.messages))


def test_a_turn_ends_with_an_answer_without_a_setting(ask: Ask) -> None:
    """The window is that of the model; memory and the turn have the complete results."""
    model = SmallModel(
        *reads(12),
        call(READ_RESULT, {"result": 1}),
        call(READ_RESULT, {"query": "of page 7"}),
        "ok",
    )
    memory = MessageWindowChatMemory()
    client = client_of(model).mutate().default_advisors(MessageChatMemoryAdvisor(memory)).build()
    response = ask(client.prompt("Read!").conversation("c")).response

    assert [conversation_problems(prompt.messages) for prompt in model.prompts] == [()] * 15
    assert max(map(size, model.prompts)) < 16_000
    assert [len(prompt.messages) for prompt in model.prompts] == list(range(1, 30, 2))
    assert results(model.prompts[5]) == [page_text(page) for page in range(1, 6)]
    assert results(model.prompts[-1])[0] == (
        "[Result 1, 10,021 characters, is left out to save space;"
        ' read_tool_result({"result": 1}) returns it.]'
    )
    assert results(model.prompts[-1])[-2].startswith(page_text(1)[:3000])
    assert 'Result 7 of read({"page":7}), character 10012: 7070' in results(model.prompts[-1])[-1]
    for kept in (response.turn.messages(), memory.get("c")):
        whole = results(Prompt.of(tuple(kept), ChatOptions()))
        assert whole[:12] == [page_text(page) for page in range(1, 13)]


def test_the_tool_is_offered_when_something_is_left_out(ask: Ask) -> None:
    """A short turn has the tools that the application gave it."""
    model = SmallModel(*reads(8), "ok")
    ask(client_of(model).prompt("Read!"))
    offered = [
        [each.definition.name for each in prompt.options.tool_callbacks or ()]
        for prompt in model.prompts
    ]

    assert offered == [["read"]] * 6 + [["read", READ_RESULT]] * 3


@pytest.mark.parametrize(
    "reason",
    [
        "This model's maximum context length is 8192 tokens. You sent 12000.",
        "max_tokens 1024 and the prompt exceed the maximum context length of 8,192 tokens",
        "12000 tokens > 8192 maximum, with a limit of 100 images",
    ],
)
def test_an_unknown_window_is_learned_from_the_first_error(ask: Ask, reason: str) -> None:
    """Other turns with the same model know it as well."""
    refused: list[int] = []
    largest = 0

    def answer(prompt: Prompt) -> Any:
        nonlocal largest
        if size(prompt) > 8_000:
            refused.append(size(prompt))
            raise ContextLengthExceededError(reason)
        largest = max(largest, size(prompt) if refused else 0)
        page = sum(isinstance(m, AssistantMessage) for m in prompt.messages) + 1
        return call("read", {"page": page}, id=f"c{page}") if page < 12 else "ok"

    client = client_of(ScriptedModel(answer))
    assert ask(client.prompt("Read!")).text == "ok"
    assert ask(client.prompt("Read!")).text == "ok"
    assert len(refused) == 1
    assert largest > 4_000


def test_an_error_without_a_number_is_enough(ask: Ask) -> None:
    """Prompts get smaller until they fit."""
    refused: list[int] = []

    def answer(prompt: Prompt) -> Any:
        if size(prompt) > 5_000:
            refused.append(size(prompt))
            raise ContextLengthExceededError("too long")
        page = sum(isinstance(m, AssistantMessage) for m in prompt.messages) + 1
        return call("read", {"page": page}, id=f"c{page}") if page < 12 else "ok"

    assert ask(client_of(ScriptedModel(answer)).prompt("Read!")).text == "ok"
    assert 0 < len(refused) <= 3


def test_a_provider_may_shorten_prompts_itself(ask: Ask) -> None:
    """Then it gets them as they are."""
    model = SmallModel(*reads(12), "ok")
    managed = {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}
    assert ask(client_of(model).prompt("Read!").options(extra=managed)).text == "ok"
    assert results(model.prompts[-1]) == [page_text(page) for page in range(1, 13)]


def test_what_cannot_be_shortened_fails_as_before(ask: Ask) -> None:
    """An error about a prompt without tool results is not followed by the same prompt."""
    model = ScriptedModel(ContextLengthExceededError("too long"))
    with pytest.raises(ContextLengthExceededError, match="too long"):
        ask(client_of(model).prompt("?" * 10_000))
    assert len(model.prompts) == 1


def test_parallel_results_share_the_room(ask: Ask) -> None:
    """Each of them is cut, and can be read in parts."""
    model = SmallModel(
        [call("read", {"page": page}, id=f"c{page}") for page in range(1, 13)],
        call(READ_RESULT, {"result": 12, "start": 9_500}),
        "ok",
    )
    assert ask(client_of(model).prompt("Read!")).text == "ok"
    cut = results(model.prompts[1])

    assert len(cut) == 12
    assert max(map(size, model.prompts)) < 16_000
    assert all(
        f'read_tool_result({{"result": {at}, "start": ' in text for at, text in enumerate(cut, 1)
    )
    assert results(model.prompts[2])[-1] == page_text(12)[9_500:]


def test_a_large_result_can_be_read_in_parts() -> None:
    """The parts are the result, whatever its characters are."""
    data = "".join(f"{at} äß𝄞 " for at in range(20_000))
    called = AssistantMessage(tool_calls=[ToolCall("1", "read", "{}")])
    shortening = Shortening(10_000, estimated_tokens)
    [*_, shown] = shortening.show(
        (UserMessage("?"), called, ToolResponseMessage([ToolResponse("1", "read", data)]))
    )
    assert isinstance(shown, ToolResponseMessage)
    assert estimated_tokens(shown) < 10_000 // 16 + 20

    read, parts = "", 0
    while len(read) < len(data):
        part = shortening.read(1, len(read))
        assert part is not None
        text, _, hint = part.rpartition("\n[Characters ")
        read += text if hint.endswith("continues.]") else part
        parts += 1
    assert read == data
    assert parts < 150


def test_a_search_finds_phrases_or_else_words(ask: Ask) -> None:
    """Calls are named with their arguments, and a call that reads is not searched."""
    pages = {1: "The red house\nis old. " + "x" * 9000, 2: "A house is red. " + "y" * 9000}

    @tool(effect="read")
    def look(page: int) -> str:
        """Look."""
        return pages.get(page, "z" * 9000)

    questions: list[dict[str, Any]] = [
        {"query": "RED HOUSE"},
        {"query": "red is house"},
        {"query": "house", "result": 2},
        {"query": "green"},
        {"result": 99},
        {},
    ]
    looks = [call("look", {"page": page}, id=f"c{page}") for page in range(1, 10)]
    model = SmallModel(*looks, *(call(READ_RESULT, each) for each in questions), "ok")
    ask(ChatClient.builder(model).default_tools(look).build().prompt("?"))
    phrase, words, one, nothing, unknown, empty = results(model.prompts[-1])[-6:]

    assert 'Result 1 of look({"page":1}), character 4: The red house' in phrase
    assert "Result 2" not in phrase
    assert "Result 1" in words
    assert "Result 2" in words
    assert one.startswith('Result 2 of look({"page":2}), character 2: A house is red.')
    assert nothing == "Nothing found for 'green'."
    assert "There is no result 99." in unknown
    assert "Give the number of a result, or a query." in empty


def test_a_result_can_be_read_any_number_of_times(ask: Ask) -> None:
    """What was read may be left out again, so that is no sign of a model that is stuck."""
    again = [call(READ_RESULT, {"result": 1}, id=f"again{at}") for at in range(8)]
    model = SmallModel(*reads(8), *again, "ok")
    assert ask(client_of(model).prompt("Read!")).text == "ok"
    assert all(f"page 1 {'01' * 100}" in results(prompt)[-1] for prompt in model.prompts[9:])


def conversation(rounds: int, length: int = 4_000) -> tuple[Message, ...]:
    return (
        UserMessage("?"),
        *(
            message
            for at in range(1, rounds + 1)
            for message in (
                AssistantMessage(tool_calls=[ToolCall(f"c{at}", "read", f'{{"page": {at}}}')]),
                ToolResponseMessage([ToolResponse(f"c{at}", "read", f"{at:03d} " * (length // 4))]),
            )
        ),
    )


def test_what_is_shown_depends_on_the_messages_only() -> None:
    """It is the same if they come one after another or at once; and it fits, and can be sent."""
    messages = conversation(300)
    one_by_one = Shortening(8_000, estimated_tokens)
    changes = 0
    before: tuple[Message, ...] = ()
    for end in range(1, len(messages) + 1, 2):
        shown = one_by_one.show(messages[:end])
        assert sum(map(estimated_tokens, shown)) == one_by_one.tokens <= 8_000
        assert conversation_problems(shown) == ()
        assert (
            shown[-1:] == messages[end - 1 : end]
            or "[Cut" in results(Prompt.of(shown, ChatOptions()))[-1]
        )
        if end % 50 == 1:
            assert Shortening(8_000, estimated_tokens).show(messages[:end]) == shown
        changes += shown[: len(before)] != before
        before = shown

    assert changes < 75
    assert one_by_one.removed > 200


def test_removed_calls_are_mentioned_and_can_be_read() -> None:
    """The number of results that are not even replaced is said once, before the first one."""
    shortening = Shortening(8_000, estimated_tokens)
    shown = results(Prompt.of(shortening.show(conversation(300)), ChatOptions()))
    first = shown[0].splitlines()

    assert first[0].endswith(
        "earlier results and their calls are left out; read_tool_result searches them.]"
    )
    assert sum("earlier results" in text for text in shown) == 1
    number = int(first[0].split()[0][1:])
    assert first[1].startswith(f"[Result {number + 1}, ")
    assert (shortening.read(1) or "").startswith("001 001")
    assert 'Result 1 of read({"page": 1})' in shortening.search("001")


def test_a_turn_that_waited_is_shown_the_same() -> None:
    """Also by another process, which knows nothing but the stored turn."""

    @tool(effect="write")
    def save(note: str) -> str:
        """Save."""
        return "saved"

    script = [*reads(9), call("save", {"note": "n"}, id="s"), *reads(12)[9:], "ok"]

    def client(model: ScriptedModel, *interceptors: Any) -> ChatClient:
        manager = ToolCallingManager(interceptors=interceptors)
        builder = ChatClient.builder(model).default_tools(read, save)
        return builder.tool_calling_manager(manager).build()

    direct = SmallModel(*script)
    client(direct).prompt("Read!").call().content()
    first, second = SmallModel(*script[:10]), SmallModel(*script[10:])
    waiting = client(first, ToolApproval()).prompt("Read!").call().pending_turn()
    assert waiting is not None
    stored = PendingTurn.from_json(waiting.to_json())
    resumed = client(second, ToolApproval()).resume(stored, "approve").call()

    assert resumed.content() == "ok"
    assert [p.messages for p in (*first.prompts, *second.prompts)] == [
        p.messages for p in direct.prompts
    ]


def test_a_model_of_several_has_the_smallest_window() -> None:
    """Any of them may get the prompt."""
    small = SmallModel(*reads(12), "ok")
    model = FallbackChatModel(small, ScriptedModel("other"))
    assert (
        ChatClient.builder(model).default_tools(read).build().prompt("?").call().content() == "ok"
    )
    assert max(map(size, small.prompts)) < 16_000


def test_an_advisor_without_a_size_takes_that_of_the_model(ask: Ask) -> None:
    """And removes turns as well, unlike a client without one."""
    history = [UserMessage("old " * 20_000), AssistantMessage("1"), UserMessage("?")]
    model = SmallModel("ok")
    advisor = ContextWindowAdvisor()
    ask(ChatClient.builder(model).default_advisors(advisor).build().prompt(history))

    assert [message.text for message in model.prompts[0].messages] == ["?"]


def test_an_application_with_its_own_loop_gets_no_further_tool(ask: Ask) -> None:
    """It could not run it; results are left out all the same."""
    model = SmallModel("ok")
    request = client_of(model).prompt(list(conversation(12, PAGE))).tool_calling(False)
    ask(request.advisors(ContextWindowAdvisor(16_000)))
    (prompt,) = model.prompts

    assert [each.definition.name for each in prompt.options.tool_callbacks or ()] == ["read"]
    assert results(prompt)[0] == "[Result 1, 10,000 characters, is left out to save space.]"
