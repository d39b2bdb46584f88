"""Prompts: conversations that are looked at and changed without copying messages."""

import pickle
from typing import Any

import pytest

from chatclient.errors import UsageError
from chatclient.messages import (
    AssistantMessage,
    Media,
    Message,
    ProviderPart,
    SystemMessage,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.options import NO_OPTIONS, ChatOptions
from chatclient.prompt import Prompt, as_prompt, with_default_options
from chatclient.response import ChatResponse

SYSTEM, OTHER_SYSTEM = SystemMessage("Be brief.", {"a": 1}), SystemMessage("Be kind.")
FIRST, ANSWER, LAST = UserMessage("One"), AssistantMessage("Two"), UserMessage("Three")
TOOL = ToolResponseMessage([ToolResponse("1", "weather", "rain")])
FILE = ProviderPart("openai", {"type": "input_file"})
OPTIONS = ChatOptions(seed=1)
TALK = Prompt([SYSTEM, FIRST, OTHER_SYSTEM, ANSWER, LAST], OPTIONS)


# --- making prompts -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ("One", (FIRST,)),
        ("", (UserMessage(""),)),
        (FIRST, (FIRST,)),
        ([SYSTEM, FIRST], (SYSTEM, FIRST)),
        ((message for message in (SYSTEM, FIRST)), (SYSTEM, FIRST)),
        ([], ()),
    ],
)
def test_a_prompt_is_made_of_many_things(messages: Any, expected: tuple[Message, ...]) -> None:
    """A text, a message or any iterable of messages makes one; options are none at first."""
    prompt = Prompt(messages)

    assert prompt.messages == expected
    assert prompt.options is NO_OPTIONS


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        (["Hi"], "wrap text in UserMessage"),
        ([None], "wrap text in UserMessage"),
        ([FIRST, {"role": "user"}], r"messages_from_openai\(\[\.\.\.\]\)"),
    ],
)
def test_what_is_no_message_makes_no_prompt(messages: Any, told: str) -> None:
    """The error shows what it was and what to do with it."""
    with pytest.raises(TypeError, match=f"expected messages, got .*{told}"):
        Prompt(messages)


def test_known_messages_are_taken_as_they_are() -> None:
    """The short way copies and checks nothing."""
    messages: tuple[Message, ...] = (SYSTEM, FIRST)
    prompt = Prompt.of(messages, OPTIONS)

    assert prompt == Prompt(messages, OPTIONS)
    assert prompt.messages is messages


def test_prompts_are_values() -> None:
    """Equal conversations with equal options are one prompt, here and in another process."""
    assert Prompt("One") == Prompt([FIRST])
    assert Prompt("One") != Prompt("One", OPTIONS)
    assert len({Prompt("One"), Prompt([FIRST])}) == 1
    assert pickle.loads(pickle.dumps(TALK)) == TALK


# --- changed copies -------------------------------------------------------------------------


def test_append_copies_no_message() -> None:
    """A long history costs nothing when a round is added: its messages stay the same objects."""
    longer = TALK.append(ANSWER, TOOL)

    assert longer == Prompt([*TALK.messages, ANSWER, TOOL], OPTIONS)
    assert all(a is b for a, b in zip(longer.messages, TALK.messages, strict=False))
    assert len(TALK.messages) == 5


def test_messages_and_options_are_replaced() -> None:
    """Either can be exchanged; the other stays."""
    assert TALK.with_messages(iter([FIRST])) == Prompt([FIRST], OPTIONS)
    assert TALK.with_options(NO_OPTIONS) == Prompt(TALK.messages)


@pytest.mark.parametrize(
    "change", [lambda it: it.append("Hi"), lambda it: it.with_messages([FIRST, "Hi"])]
)
def test_changes_take_only_messages(change: Any) -> None:
    """A text among messages is refused wherever it comes in."""
    with pytest.raises(TypeError, match=r"wrap text in UserMessage"):
        change(TALK)


# --- looking ------------------------------------------------------------------------------


def test_the_first_system_and_the_last_user_message_count() -> None:
    """They are the ones that advisors look at and change."""
    assert TALK.system_message is SYSTEM
    assert TALK.user_message is LAST


def test_there_may_be_no_such_message() -> None:
    """Nothing is invented where there is nothing."""
    assert Prompt([ANSWER]).system_message is None
    assert Prompt([ANSWER]).user_message is None
    assert Prompt([ANSWER]).last_user_or_tool_response_message is None


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([FIRST, ANSWER, TOOL], TOOL),
        ([FIRST, ANSWER, TOOL, LAST], LAST),
        ([TOOL, ANSWER], TOOL),
    ],
)
def test_the_last_thing_said_to_the_model(messages: list[Message], expected: Message) -> None:
    """Whichever of user and tools spoke last, even when the model has answered since."""
    assert Prompt(messages).last_user_or_tool_response_message is expected


def test_contents_are_all_that_was_said() -> None:
    """One text for searching and logging, without lines for messages that have none."""
    assert Prompt([SYSTEM, FIRST, TOOL, ANSWER]).contents == "Be brief.\nOne\nTwo"


# --- augmenting -----------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["Be brief. Now.", lambda text: f"{text} Now."])
def test_the_first_system_message_is_augmented(change: Any) -> None:
    """It changes in its place and keeps its metadata; nothing else is touched."""
    prompt = TALK.augment_system_message(change)

    changed = SystemMessage("Be brief. Now.", {"a": 1})
    assert prompt == TALK.with_messages([changed, FIRST, OTHER_SYSTEM, ANSWER, LAST])
    assert TALK.system_message is SYSTEM


@pytest.mark.parametrize("change", ["[] Now.", lambda text: f"[{text}] Now."])
def test_a_system_message_is_put_first_where_there_is_none(change: Any) -> None:
    """A function is given an empty text then."""
    prompt = Prompt([FIRST, ANSWER], OPTIONS).augment_system_message(change)

    assert prompt == Prompt([SystemMessage("[] Now."), FIRST, ANSWER], OPTIONS)


@pytest.mark.parametrize("change", ["Three!", lambda text: f"{text}!"])
def test_the_last_user_message_is_augmented(change: Any) -> None:
    """It changes in its place, with its media and metadata; earlier ones stay."""
    image = Media("image/png", b"\x89PNG")
    asked = UserMessage("Three", [image], {"a": 1})
    prompt = Prompt([FIRST, asked, ANSWER], OPTIONS).augment_user_message(change)

    changed = UserMessage("Three!", [image], {"a": 1})
    assert prompt == Prompt([FIRST, changed, ANSWER], OPTIONS)


@pytest.mark.parametrize("change", [None, lambda _: None, 3])
def test_a_change_of_a_text_comes_to_a_text(change: Any) -> None:
    """A function that returns nothing would leave all as it was, and nobody would see."""
    for augment in (
        TALK.augment_system_message,
        Prompt("Hi").augment_system_message,
        TALK.augment_user_message,
        ChatResponse.of("Hi").with_text,
    ):
        with pytest.raises(TypeError, match=r"the new text must be a str, not .* must return it"):
            augment(change)


def test_there_must_be_a_user_message_to_augment() -> None:
    """An advisor that would change nothing is told so."""
    with pytest.raises(UsageError, match="no user message"):
        Prompt([SYSTEM]).augment_user_message("Hi")


# --- as_prompt ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("One", Prompt("One")),
        (FIRST, Prompt("One")),
        ([SYSTEM, FIRST], Prompt([SYSTEM, FIRST])),
        (SYSTEM, Prompt([SYSTEM])),
        ([UserMessage(""), ANSWER], Prompt([UserMessage(""), ANSWER])),
        (UserMessage(Media("a/b", b"")), Prompt(UserMessage(Media("a/b", b"")))),
        (UserMessage([FILE]), Prompt(UserMessage([FILE]))),
    ],
)
def test_anything_to_send_is_a_prompt(given: Any, expected: Prompt) -> None:
    """Whatever form it was given in, and also when it has no text of its own."""
    assert as_prompt(given) == expected


def test_a_prompt_is_a_prompt_already() -> None:
    """It is handed on, not copied."""
    assert as_prompt(TALK) is TALK


@pytest.mark.parametrize(
    "blank", ["", " \n", [], Prompt([]), UserMessage(), UserMessage([" ", "\t"])]
)
def test_blank_prompts_are_refused(blank: Any) -> None:
    """Nothing is sent when there is nothing to say."""
    with pytest.raises(UsageError, match="the prompt is blank"):
        as_prompt(blank)


def test_defaults_lie_under_a_prompts_options() -> None:
    """What the prompt sets wins, the rest is filled up; the messages are the same."""
    prompt = with_default_options(TALK, ChatOptions(seed=2, model="m"))

    assert prompt == TALK.with_options(ChatOptions(seed=1, model="m"))
    assert prompt.messages is TALK.messages


def test_single_options_change_and_tools_stay() -> None:
    """An advisor that chooses a model loses nothing else that was asked for."""
    prompt = Prompt("x", ChatOptions(seed=1, tool_names=("weather",)))

    changed = prompt.mutate_options(model="big", seed=2)

    assert changed.options == ChatOptions(model="big", seed=2, tool_names=("weather",))
    assert changed.messages is prompt.messages
    with pytest.raises(UsageError, match="'modle'"):
        prompt.mutate_options(modle="big")  # type: ignore[call-arg]
