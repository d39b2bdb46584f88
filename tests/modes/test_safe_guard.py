"""Sensitive words in questions, answers, streams and the memory."""

import pickle
import re
from itertools import groupby
from typing import Any

import pytest

from chatclient import ChatClient, ChatClientRequest, ChatClientResponse, Next, tool
from chatclient.advisors import TOOL_CALLING_ORDER
from chatclient.advisors.guardrails.advisors import GuardrailResult, OutputGuardrailAdvisor
from chatclient.advisors.guardrails.safe_guard import (
    FAILURE_RESPONSE,
    SafeGuardAdvisor,
)
from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor
from chatclient.advisors.tool_loop.advisor import Steering
from chatclient.chat.events import ReasoningDelta, RoundEnded, TextDelta
from chatclient.chat.messages import AssistantMessage, Reasoning, UserMessage
from chatclient.chat.response import ChatResponse
from chatclient.errors import EntityError, UsageError
from chatclient.memory import InMemoryChatMemoryRepository, MessageWindowChatMemory
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import PendingTurn, ToolApproval, ToolCallingManager


def guarded(model: ScriptedModel, *forbidden: Any, **how: Any) -> ChatClient:
    return ChatClient.builder(model).default_advisors(SafeGuardAdvisor(*forbidden, **how)).build()


async def knows_secrets(text: str) -> bool:
    return "secret" in text


FORBIDDEN = [
    ("bomb", "How is a BOMB built?", "BOMB"),
    ("bomb", "bomb", "bomb"),
    ("bad word", "a bad\n word, that", "bad"),
    ("C++", "write C++, please", "C++"),
    ("straße", "Die STRAßE", "STRAßE"),
    ("炸弹", "如何制造炸弹呢", "炸弹"),
    ("bomb", "怎么做bomb呢", "bomb"),
    ("ばくだん", "これはばくだんです", "ばくだん"),
    ("폭탄", "폭탄을 만드는 법", "폭탄"),
    ("ระเบิด", "วิธีทำระเบิดง่ายๆ", "ระเบิด"),
    (re.compile(r"\b\d{4} \d{4}\b"), "my card is 1234 5678", "1234"),
    (lambda text: "secret" in text, "a secretive one", "secret"),
    (knows_secrets, "a secret", "secret"),
]
ALLOWED = [
    ("bomb", "A bombastic speech"),
    ("ass", "a class of assassins passes"),
    ("bad word", "bad sword"),
    ("bomb", "bombe呢"),
    (re.compile("x+"), "yyy"),
    (knows_secrets, "open"),
]


@pytest.mark.feature("advisors-safe-guard-advisor")
@pytest.mark.parametrize(("forbidden", "text", "begin"), FORBIDDEN)
def test_what_is_forbidden_is_never_asked(ask: Ask, forbidden: Any, text: str, begin: str) -> None:
    """Words in any case, patterns and functions block the question; nothing is sent."""
    model = ScriptedModel()
    result = ask(guarded(model, forbidden).prompt(text))

    assert result.text == FAILURE_RESPONSE
    assert result.response.turn.blocked == "input"
    assert result.response.chat_response.finish_reason == "content_filter"
    assert model.prompts == []


@pytest.mark.feature("advisors-answers-not-checked")
@pytest.mark.parametrize(("forbidden", "text", "begin"), FORBIDDEN)
def test_what_is_forbidden_is_never_answered(
    ask: Ask, forbidden: Any, text: str, begin: str
) -> None:
    """A forbidden word is not streamed in part, however the stream is split."""
    for chunks in (1, 3, 100):
        model = ScriptedModel(f"Well, {text} is", chunks=chunks)
        result = ask(guarded(model, forbidden, check_input=False).prompt("?"))

        assert result.response.chat_response.text == FAILURE_RESPONSE
        assert result.response.turn.blocked == "output"
        assert result.text.endswith(FAILURE_RESPONSE)
        said = result.text.removesuffix(FAILURE_RESPONSE).removesuffix("\n\n")
        assert f"Well, {text[: text.index(begin)]}".startswith(said)
        assert not any(isinstance(e, RoundEnded) and text in e.response.text for e in result.events)


async def counting(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
    """Emit the length of the text after each piece."""
    said = 0

    async def emit(event: Any) -> None:
        nonlocal said
        await request.runtime.emit(event)
        if isinstance(event, TextDelta):
            said += len(event.text)
            await request.runtime.emit(said)

    return await call_next(request.mutate(runtime=request.runtime.with_emitter(emit)))


@pytest.mark.parametrize(("forbidden", "text", "begin"), FORBIDDEN)
def test_events_of_others_do_not_tear_what_is_forbidden(
    ask: Ask, forbidden: Any, text: str, begin: str
) -> None:
    """Words are found although an inner advisor emits events between their pieces."""
    answer = f"Well, {text} is"
    client = guarded(ScriptedModel(answer, chunks=2), forbidden, check_input=False)
    result = ask(client.prompt("?").advisors(counting))

    said = result.text.removesuffix(FAILURE_RESPONSE).removesuffix("\n\n")
    assert f"Well, {text[: text.index(begin)]}".startswith(said)
    told = [event for event in result.events if isinstance(event, int)]
    assert told == ([*range(2, len(answer), 2), len(answer)] if ask.streaming else [])


@pytest.mark.parametrize("forbidden", ["bomb", re.compile("bomb"), knows_secrets])
def test_events_keep_their_order(ask: Ask, forbidden: Any) -> None:
    """Also while text is held back."""
    text = "A long and harmless answer, with nothing in it."
    model = ScriptedModel(AssistantMessage([Reasoning("Be harmless."), text]), chunks=3)
    result = ask(guarded(model, forbidden).prompt("?").advisors(counting))

    assert result.text == text
    said = 0
    for event in result.events:
        said += len(event.text) if isinstance(event, TextDelta) else 0
        assert not isinstance(event, int) or event == said


@pytest.mark.feature("advisors-safe-guard-advisor")
@pytest.mark.parametrize(("forbidden", "text"), ALLOWED)
def test_what_only_looks_like_it_passes(ask: Ask, forbidden: Any, text: str) -> None:
    """A forbidden word within another word does not count; the complete answer is streamed."""
    result = ask(guarded(ScriptedModel(text, chunks=2), forbidden).prompt(text))

    assert result.text == text
    assert result.response.turn.blocked is None


ESCAPED = [
    ("bomb", r'{"steps": "One.\nbomb, two."}', r"\nbomb"),
    ("bomb", r'{"steps": "One.\\\nbomb"}', r"\nbomb"),
    ("bomb", r'{"steps": "b\u006fmb"}', "b"),
    ("Müller", r'{"name": "M\u00fcller"}', r"M\u00fcller"),
    ("\U0001f4a3", r'{"sign": "\ud83d\udca3"}', r"\ud83d"),
    ("build a bomb", r'{"steps": "build\n\ta\u0020\u0062omb"}', "build"),
    (re.compile(r"\bbomb\b"), r'{"steps": "One.\tbomb"}', r"\tbomb"),
    (lambda text: "a\nb" in text, r'{"steps": "a\nb"}', "a"),
]


@pytest.mark.feature("advisors-answers-not-checked")
@pytest.mark.parametrize("chunks", [1, 3, 7, 100])
@pytest.mark.parametrize(("forbidden", "text", "begin"), ESCAPED)
def test_what_is_forbidden_is_not_hidden_by_escapes(
    ask: Ask, forbidden: Any, text: str, begin: str, chunks: int
) -> None:
    """JSON escapes are decoded, because an entity has the decoded text."""
    result = ask(guarded(ScriptedModel(text, chunks=chunks), forbidden).prompt("?"))

    assert result.response.chat_response.text == FAILURE_RESPONSE
    said = result.text.removesuffix(FAILURE_RESPONSE).removesuffix("\n\n")
    assert text[: text.index(begin)].startswith(said)
    with pytest.raises(EntityError, match="sensitive content"):
        guarded(ScriptedModel(text), forbidden).prompt("?").call().entity(dict[str, str])


@pytest.mark.parametrize(
    "text", [r"C:\new\ass", r'{"a": "One.\nbombs \u0062\\nomb"}', "\\", r"\u00"]
)
def test_harmless_escapes_pass(ask: Ask, text: str) -> None:
    """They are streamed unchanged."""
    result = ask(guarded(ScriptedModel(text, chunks=1), "bomb", "new york").prompt("?"))

    assert result.text == result.response.chat_response.text == text


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("word", ["ass", "hen it"])
def test_a_part_of_a_word_is_harmless_among_escapes_too(ask: Ask, word: str, chunks: int) -> None:
    """However long the text with escapes is."""
    text = r"\n A class of them.\n\n And then it goes on: \u0061ss\u0065s.\n" * 3
    result = ask(guarded(ScriptedModel(text, chunks=chunks), word).prompt("?"))

    assert result.text == text


@pytest.mark.feature("advisors-answers-not-checked")
def test_harmless_text_is_streamed_immediately(ask: Ask) -> None:
    """Only text that may still become forbidden is held back."""
    seen: list[str] = []

    def answer(text: str) -> list[str]:
        return [text[i : i + 10] for i in range(0, len(text), 10)]

    text = "word " * 40
    result = ask(guarded(ScriptedModel(text, chunks=answer), "bomb").prompt("?"))
    seen = [event.text for event in result.events if isinstance(event, TextDelta)]

    assert result.text == text
    assert len(seen) > 15 or not ask.streaming


@pytest.mark.parametrize("phrase", ["build a bomb", "build\ta\nbomb", " build  a bomb "])
def test_phrases_with_wide_spaces(ask: Ask, phrase: str) -> None:
    """Spaces in the answer or in the forbidden phrase may be of any width."""
    model = ScriptedModel("We can build     a     bomb here.", chunks=1)
    result = ask(guarded(model, phrase).prompt("?"))

    assert result.text.endswith(FAILURE_RESPONSE)
    assert "build" not in result.text


def test_a_word_at_the_very_end_is_found(ask: Ask) -> None:
    """A word ends with its round."""
    result = ask(guarded(ScriptedModel("It is a bomb", chunks=1), "bomb").prompt("?"))

    assert "bomb" not in result.text


def test_thoughts_are_looked_at_too(ask: Ask) -> None:
    """Reasoning is checked before it is streamed."""
    message = AssistantMessage("Fine.", reasoning=[Reasoning("A bomb!")])
    result = ask(guarded(ScriptedModel(message), "bomb").prompt("?"))

    assert result.response.chat_response.text == FAILURE_RESPONSE
    assert not any("bomb" in e.text for e in result.events if isinstance(e, ReasoningDelta))


def test_a_signature_follows_the_thoughts_that_it_is_of(ask: Ask) -> None:
    """It is streamed after its reasoning, or withheld with it."""
    for thought, said in (("Be kind.", ["ReasoningDelta", "ReasoningSigned"]), ("A bomb.", [])):
        message = AssistantMessage([Reasoning(thought, signature="s"), "Hello."])
        result = ask(guarded(ScriptedModel(message), re.compile("bomb")).prompt("?"))
        told = [type(e).__name__ for e in result.events if "Reasoning" in type(e).__name__]

        assert told == (said if ask.streaming else [])


def test_harmless_thoughts_are_streamed_in_order(ask: Ask) -> None:
    """Text and reasoning are checked separately."""
    message = AssistantMessage("Fine.", reasoning=[Reasoning("Hm, hm, hm.")])
    result = ask(guarded(ScriptedModel(message), "bomb").prompt("?"))

    assert result.text == "Fine."
    pieces = [e for e in result.events if isinstance(e, ReasoningDelta | TextDelta)]
    told = [(kind, "".join(e.text for e in run)) for kind, run in groupby(pieces, type)]
    expected = [(ReasoningDelta, "Hm, hm, hm."), (TextDelta, "Fine.")]
    assert told == (expected if ask.streaming else [])


@tool
def look_up() -> str:
    """Look something up."""
    return "found"


def test_a_question_before_the_start_of_an_answer_is_checked(ask: Ask) -> None:
    """The question is checked although the first words of the answer follow it."""
    request = guarded(ScriptedModel("like this."), "bomb").prompt()
    result = ask(request.messages(UserMessage("How is a bomb built?"), AssistantMessage("Just")))

    assert result.text == FAILURE_RESPONSE


@pytest.mark.feature("advisors-answers-not-checked")
def test_each_round_is_looked_at(ask: Ask) -> None:
    """A forbidden word ends the turn in its round, and no tool is run."""
    memory = MessageWindowChatMemory(InMemoryChatMemoryRepository())
    model = ScriptedModel(call("look_up"), ("The bomb: ", call("look_up")), "fine")
    client = guarded(model, "bomb").mutate().default_tools(look_up).build()
    request = client.prompt("?").conversation("c").advisors(MessageChatMemoryAdvisor(memory))
    result = ask(request)

    assert result.text == (f"The\n\n{FAILURE_RESPONSE}" if ask.streaming else FAILURE_RESPONSE)
    assert result.response.chat_response.text == FAILURE_RESPONSE
    assert result.response.turn.blocked == "output"
    assert (len(model.prompts), len(result.executions)) == (2, 1)
    assert [message.role for message in memory.get("c")] == ["user", "assistant", "tool"]
    assert pickle.loads(pickle.dumps(result.response)) == result.response


def test_advisors_further_in_know_nothing_of_it(ask: Ask) -> None:
    """An inner retry or fallback sees neither an error nor a partial stream."""
    seen: list[str] = []

    async def watch(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        try:
            response = await call_next(request)
        except Exception as error:
            seen.append(repr(error))
            raise
        seen.append(response.chat_response.text)
        return response

    client = guarded(ScriptedModel("A bomb it is."), "bomb").mutate().default_advisors(watch)

    assert ask(client.build().prompt("?")).text.endswith(FAILURE_RESPONSE)
    assert seen == ["A bomb it is."]


def test_corrections_of_inner_advisors_are_checked(ask: Ask) -> None:
    """If an inner advisor retries or replaces words, the answer that it returns is checked."""

    async def again(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        await call_next(request)
        return await call_next(request)

    async def blot(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        response = await call_next(request)
        answer = response.chat_response
        return response.mutate(chat_response=answer.with_text(answer.text.replace("bomb", "***")))

    client = guarded(ScriptedModel("A bomb!", "A flower!"), "bomb")
    result = ask(client.prompt("?").advisors(again))
    assert (result.text, result.response.chat_response.text) == ("A flower!", "A flower!")

    result = ask(guarded(ScriptedModel("It is a bomb."), "bomb").prompt("?").advisors(blot))
    assert result.response.chat_response.text == "It is a ***."
    assert result.text == ("It is a\n\nIt is a ***." if ask.streaming else "It is a ***.")


def test_reasoning_before_text_is_checked_first(ask: Ask) -> None:
    """Reasoning that was held back is checked before the text that follows it."""
    thought = Reasoning("A bomb")
    message = AssistantMessage("Fine words.", reasoning=[thought])
    result = ask(guarded(ScriptedModel(message), re.compile("bomb")).prompt("?"))

    assert result.text == FAILURE_RESPONSE
    assert not any(isinstance(e, ReasoningDelta) for e in result.events)


def test_a_function_is_called_once_for_a_text(ask: Ask) -> None:
    """The function is called once for each text, because it may call a model."""
    asked: list[str] = []

    def check(text: str) -> bool:
        asked.append(text)
        return False

    model = ScriptedModel(("Let me see. ", call("look_up")), "Found.")
    client = guarded(model, check).mutate().default_tools(look_up).build()

    assert ask(client.prompt("?")).text.endswith("Found.")
    assert asked == ["?", "Let me see. ", "Found."]


def test_a_question_after_an_unanswered_turn(ask: Ask) -> None:
    """It is checked once, and not as user input during the turn before."""
    asked: list[str] = []
    memory = MessageChatMemoryAdvisor(MessageWindowChatMemory())
    client = guarded(ScriptedModel(call("look_up"), "", "Fine."), asked.append)
    client = client.mutate().default_tools(look_up).default_advisors(memory).build()
    ask(client.prompt("One?").conversation("c"))
    ask(client.prompt("Two?").conversation("c"))

    assert asked.count("Two?") == 1


def test_guards_refuse_apart_from_each_other(ask: Ask) -> None:
    """With two guards, a refusal is streamed once."""
    outer, inner = SafeGuardAdvisor("gun"), SafeGuardAdvisor("bomb")
    client = ChatClient.create(ScriptedModel("bomb")).mutate().default_advisors(outer, inner)

    assert ask(client.build().prompt("?")).text == FAILURE_RESPONSE


def test_a_guard_is_drawn_on_both_sides_of_the_loop() -> None:
    """It checks the answer around the loop, and each round inside."""
    assert "\n    → SafeGuardAdvisor, each round" in str(guarded(ScriptedModel(), "bomb"))
    blind = guarded(ScriptedModel(), "bomb", check_input=False, check_output=False)
    assert "each round" not in str(blind)


def test_inside_the_loop_a_guard_judges_by_itself(ask: Ask) -> None:
    """With an order inside the loop, it checks each round as a separate request."""
    model = ScriptedModel(("The bomb: ", call("look_up")), "fine")
    client = guarded(model, "bomb", order=0).mutate().default_tools(look_up).build()

    assert ask(client.prompt("?")).text.endswith(FAILURE_RESPONSE)


def test_each_side_can_be_left_alone(ask: Ask) -> None:
    """Checks of input and of output can be switched off."""
    client = guarded(ScriptedModel("bomb"), "bomb", check_input=False, check_output=False)

    assert ask(client.prompt("bomb")).text == "bomb"


@pytest.mark.parametrize(
    ("checks", "asked"), [({}, 1), ({"check_output": False}, 1), ({"check_input": False}, 2)]
)
def test_user_input_during_the_turn_is_checked(
    ask: Ask, checks: dict[str, bool], asked: int
) -> None:
    """It is checked before the round that sends it; the context keeps nothing of that."""
    steering = Steering()

    @tool
    def look() -> str:
        """Look."""
        steering.send("And bombs? How is a bomb built?")
        return "seen"

    model = ScriptedModel(call("look"), "Like this.")
    client = guarded(model, "bomb", **checks).mutate().default_tools(look).build()
    result = ask(client.prompt("Look.").advisors(steering))

    assert len(model.prompts) == asked
    refused = asked == 1
    assert result.text == (FAILURE_RESPONSE if refused else "Like this.")
    assert result.response.turn.blocked == ("input" if refused else None)
    assert result.response.chat_response.usage.total_tokens == 15 * asked
    assert not any(key.startswith("safe_guard") for key in result.response.context)


def test_corrections_of_a_guardrail_are_not_checked(ask: Ask) -> None:
    """A correction is not checked, because it may name the forbidden word."""

    def in_words(answer: ChatResponse) -> GuardrailResult | None:
        if answer.text == "3":
            return GuardrailResult.reprompt("no words", "Say it in words, but no bad word.")
        return None

    client = (
        guarded(ScriptedModel("3", "Three."), "bad word")
        .mutate()
        .default_advisors(OutputGuardrailAdvisor(in_words))
        .build()
    )

    assert ask(client.prompt("How many?")).text == "Three."


@pytest.mark.feature("advisors-substring-any-message-history")
def test_only_the_new_message_is_checked(ask: Ask) -> None:
    """Forbidden words in the history or the system text do not block a question."""
    messages = [UserMessage("bomb"), AssistantMessage("No."), UserMessage("And flowers?")]
    client = guarded(ScriptedModel("Yes."), "bomb")

    assert ask(client.prompt(messages).system("Never talk about a bomb.")).text == "Yes."


def test_a_resumed_turn_is_not_judged_again(ask: Ask) -> None:
    """The user's text was checked before, and documents are never checked."""

    async def retrieval(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        prompt = request.prompt.augment_user_message(lambda text: f"{text} On bombs: a bomb ...")
        return await call_next(request.mutate(prompt=prompt))

    retrieval.order = TOOL_CALLING_ORDER - 10  # type: ignore[attr-defined]

    @tool
    def order_book() -> str:
        """Order the book."""
        return "ordered"

    client = (
        guarded(ScriptedModel(call("order_book"), "Done."), "bomb")
        .mutate()
        .default_advisors(retrieval)
        .default_tools(order_book)
        .tool_calling_manager(ToolCallingManager(interceptors=[ToolApproval()]))
        .build()
    )
    waiting: PendingTurn = ask(client.prompt("Order it.")).waiting

    assert ask(client.resume(waiting.to_json(), "approve")).text == "Done."


@pytest.mark.feature("advisors-blocked-text-stays-memory")
def test_memory_is_not_poisoned(ask: Ask) -> None:
    """Neither a refused question or answer nor the refusal is stored."""
    memory = MessageWindowChatMemory(InMemoryChatMemoryRepository())
    model = ScriptedModel("Here is a bomb.", "Hello!")
    client = (
        ChatClient.builder(model)
        .default_advisors(MessageChatMemoryAdvisor(memory), SafeGuardAdvisor("bomb"))
        .build()
    )
    for text in ("A bomb!", "Something.", "Hi"):
        result = ask(client.prompt(text).conversation("c"))

    assert result.text == "Hello!"
    assert [m.text for m in model.prompts[-1].messages] == ["Hi"]
    assert [m.text for m in memory.get("c")] == ["Hi", "Hello!"]


def test_an_advisors_own_answer_is_looked_at(ask: Ask) -> None:
    """An answer that an inner advisor returns is checked, too."""

    async def answer(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        return ChatClientResponse(ChatResponse.of("bomb"))

    client = guarded(ScriptedModel(), "bomb").mutate().default_advisors(answer).build()

    assert ask(client.prompt("?")).text == FAILURE_RESPONSE


def test_what_an_advisor_adds_to_an_answer_is_looked_at(ask: Ask) -> None:
    """Also if nothing of it was streamed."""

    async def add(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        response = await call_next(request)
        return response.mutate(chat_response=ChatResponse.of("A bomb"))

    client = guarded(ScriptedModel("Fine."), "bomb").mutate().default_advisors(add).build()
    result = ask(client.prompt("?"))

    assert result.response.chat_response.text == FAILURE_RESPONSE
    assert result.text == (f"Fine.\n\n{FAILURE_RESPONSE}" if ask.streaming else FAILURE_RESPONSE)


@pytest.mark.parametrize("forbidden", [re.compile("bomb"), ()])
def test_text_that_was_not_streamed_is_checked(ask: Ask, forbidden: Any) -> None:
    """The response may have more text than its stream."""

    async def more(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        await request.runtime.emit(RoundEnded(ChatResponse.of("a bomb")))
        return ChatClientResponse(ChatResponse.of("a bomb"))

    words = [] if forbidden else ["bomb"]
    client = guarded(ScriptedModel(), *words, forbidden).mutate().default_advisors(more).build()
    result = ask(client.prompt("?"))

    assert result.text == FAILURE_RESPONSE
    assert "bomb" not in str(result.events)


@pytest.mark.feature("advisors-safe-guard-advisor")
def test_a_custom_failure_response(ask: Ask) -> None:
    """The failure response can be set; words may be given as a collection."""
    client = guarded(ScriptedModel(), ["bomb", "gun"], failure_response="No.")

    assert ask(client.prompt("A gun")).text == "No."


@pytest.mark.feature("advisors-empty-list-passes-everything")
def test_a_blank_word_is_a_mistake() -> None:
    """A blank word is refused, because it would forbid everything."""
    with pytest.raises(UsageError, match="blank"):
        SafeGuardAdvisor("bomb", " ")
