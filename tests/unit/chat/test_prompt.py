"""Prompts: immutable conversations that share their messages."""

import pickle
from typing import Any

import pytest

from chatclient.chat.messages import (
    AssistantMessage,
    Media,
    Message,
    ProviderPart,
    SystemMessage,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.chat.options import NO_OPTIONS, ChatOptions
from chatclient.chat.prompt import Prompt, as_prompt, with_default_options
from chatclient.chat.response import ChatResponse
from chatclient.errors import UsageError

SYSTEM, OTHER_SYSTEM = SystemMessage("Be brief.", {"a": 1}), SystemMessage("Be kind.")
FIRST, ANSWER, LAST = UserMessage("One"), AssistantMessage("Two"), UserMessage("Three")
TOOL = ToolResponseMessage([ToolResponse("1", "weather", "rain")])
FILE = ProviderPart("openai", {"type": "input_file"})
OPTIONS = ChatOptions(seed=1)
TALK = Prompt([SYSTEM, FIRST, OTHER_SYSTEM, ANSWER, LAST], OPTIONS)


# --- making prompts -------------------------------------------------------------------------


@pytest.mark.feature("prompt-object-text-message-list-options")
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
def test_prompt_forms(messages: Any, expected: tuple[Message, ...]) -> None:
    """A string, a message or messages form a prompt without options."""
    prompt = Prompt(messages)

    assert prompt.messages == expected
    assert prompt.options is NO_OPTIONS


@pytest.mark.feature("prompt-object-foreign-elements-refused")
@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (["Hi"], "wrap text in UserMessage"),
        ([None], "wrap text in UserMessage"),
        ([FIRST, {"role": "user"}], r"messages_from_openai\(\[\.\.\.\]\)"),
    ],
)
def test_invalid_prompt_content(messages: Any, message: str) -> None:
    """The error shows the value and how to fix it."""
    with pytest.raises(TypeError, match=f"expected messages, got .*{message}"):
        Prompt(messages)


def test_from_messages_does_not_copy() -> None:
    """The fast constructor neither copies nor checks messages."""
    messages: tuple[Message, ...] = (SYSTEM, FIRST)
    prompt = Prompt.of(messages, OPTIONS)

    assert prompt == Prompt(messages, OPTIONS)
    assert prompt.messages is messages


def test_prompt_equality_and_pickling() -> None:
    """Equal messages and options give equal prompts, also after pickling."""
    assert Prompt("One") == Prompt([FIRST])
    assert Prompt("One") != Prompt("One", OPTIONS)
    assert len({Prompt("One"), Prompt([FIRST])}) == 1
    assert pickle.loads(pickle.dumps(TALK)) == TALK


# --- changed copies -------------------------------------------------------------------------


@pytest.mark.feature("prompt-object-mutate-copy")
def test_append_shares_messages() -> None:
    """Appending keeps the same message objects."""
    longer = TALK.append(ANSWER, TOOL)

    assert longer == Prompt([*TALK.messages, ANSWER, TOOL], OPTIONS)
    assert all(a is b for a, b in zip(longer.messages, TALK.messages, strict=False))
    assert len(TALK.messages) == 5


@pytest.mark.feature("prompt-object-mutate-copy")
def test_replace_messages_or_options() -> None:
    """Messages and options are replaced independently."""
    assert TALK.with_messages(iter([FIRST])) == Prompt([FIRST], OPTIONS)
    assert TALK.with_options(NO_OPTIONS) == Prompt(TALK.messages)


@pytest.mark.parametrize(
    "change", [lambda it: it.append("Hi"), lambda it: it.with_messages([FIRST, "Hi"])]
)
def test_changes_require_messages(change: Any) -> None:
    """A string among messages is rejected by every method."""
    with pytest.raises(TypeError, match=r"wrap text in UserMessage"):
        change(TALK)


# --- reading --------------------------------------------------------------------------------


@pytest.mark.feature("prompt-object-get-system-message-user")
def test_system_and_user_message() -> None:
    """The first system and the last user message are returned."""
    assert TALK.system_message is SYSTEM
    assert TALK.user_message is LAST


@pytest.mark.feature("prompt-object-get-system-message-user")
def test_missing_system_and_user_message() -> None:
    """Without such a message the result is empty."""
    assert Prompt([ANSWER]).system_message is None
    assert Prompt([ANSWER]).user_message is None
    assert Prompt([ANSWER]).last_user_or_tool_response_message is None


@pytest.mark.feature("prompt-object-get-last-user-tool")
@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([FIRST, ANSWER, TOOL], TOOL),
        ([FIRST, ANSWER, TOOL, LAST], LAST),
        ([TOOL, ANSWER], TOOL),
    ],
)
def test_last_input_message(messages: list[Message], expected: Message) -> None:
    """The last user or tool message, also before an answer."""
    assert Prompt(messages).last_user_or_tool_response_message is expected


@pytest.mark.feature("prompt-object-get-contents")
def test_contents() -> None:
    """The contents join all texts and skip empty ones."""
    assert Prompt([SYSTEM, FIRST, TOOL, ANSWER]).contents == "Be brief.\nOne\nTwo"


# --- augmenting -----------------------------------------------------------------------------


@pytest.mark.feature(
    "prompt-object-augment-system-message", "service-system-message-transformer-user"
)
@pytest.mark.parametrize("change", ["Be brief. Now.", lambda text: f"{text} Now."])
def test_augment_system_message(change: Any) -> None:
    """It changes in place and keeps its metadata; other messages are unchanged."""
    prompt = TALK.augment_system_message(change)

    changed = SystemMessage("Be brief. Now.", {"a": 1})
    assert prompt == TALK.with_messages([changed, FIRST, OTHER_SYSTEM, ANSWER, LAST])
    assert TALK.system_message is SYSTEM


@pytest.mark.feature("prompt-object-augment-system-message")
@pytest.mark.parametrize("change", ["[] Now.", lambda text: f"[{text}] Now."])
def test_augment_missing_system_message(change: Any) -> None:
    """A new system message is inserted first; a function gets an empty string."""
    prompt = Prompt([FIRST, ANSWER], OPTIONS).augment_system_message(change)

    assert prompt == Prompt([SystemMessage("[] Now."), FIRST, ANSWER], OPTIONS)


@pytest.mark.feature(
    "prompt-object-augment-user-message", "service-system-message-transformer-user"
)
@pytest.mark.parametrize("change", ["Three!", lambda text: f"{text}!"])
def test_augment_user_message(change: Any) -> None:
    """It changes in place with media and metadata; earlier ones are unchanged."""
    image = Media("image/png", b"\x89PNG")
    question = UserMessage("Three", [image], {"a": 1})
    prompt = Prompt([FIRST, question, ANSWER], OPTIONS).augment_user_message(change)

    changed = UserMessage("Three!", [image], {"a": 1})
    assert prompt == Prompt([FIRST, changed, ANSWER], OPTIONS)


@pytest.mark.parametrize("change", [None, lambda _: None, 3])
def test_augment_function_must_return_text(change: Any) -> None:
    """A function that returns no string raises."""
    for augment in (
        TALK.augment_system_message,
        Prompt("Hi").augment_system_message,
        TALK.augment_user_message,
        ChatResponse.of("Hi").with_text,
    ):
        with pytest.raises(TypeError, match=r"the new text must be a str, not .* must return it"):
            augment(change)


@pytest.mark.feature("prompt-object-augment-user-message")
def test_augment_without_user_message() -> None:
    """Augmenting a missing user message raises."""
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
def test_as_prompt(given: Any, expected: Prompt) -> None:
    """Every form with content is accepted, also without text."""
    assert as_prompt(given) == expected


def test_as_prompt_returns_a_prompt_unchanged() -> None:
    """A prompt is returned without a copy."""
    assert as_prompt(TALK) is TALK


@pytest.mark.parametrize(
    "blank", ["", " \n", [], Prompt([]), UserMessage(), UserMessage([" ", "\t"])]
)
def test_blank_prompts(blank: Any) -> None:
    """Blank prompts raise."""
    with pytest.raises(UsageError, match="the prompt is blank"):
        as_prompt(blank)


def test_default_options() -> None:
    """Options of the prompt override the defaults; messages are shared."""
    prompt = with_default_options(TALK, ChatOptions(seed=2, model="m"))

    assert prompt == TALK.with_options(ChatOptions(seed=1, model="m"))
    assert prompt.messages is TALK.messages


@pytest.mark.feature("prompt-object-mutate-options-prompt")
def test_change_single_option() -> None:
    """Changing one option keeps the others and the tools."""
    prompt = Prompt("x", ChatOptions(seed=1, tool_names=("weather",)))

    changed = prompt.mutate_options(model="big", seed=2)

    assert changed.options == ChatOptions(model="big", seed=2, tool_names=("weather",))
    assert changed.messages is prompt.messages
    with pytest.raises(UsageError, match="'modle'"):
        prompt.mutate_options(modle="big")  # type: ignore[call-arg]
