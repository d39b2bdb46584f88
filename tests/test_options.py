"""Options: what is set nearer to the request wins, and nothing is misspelt in silence."""

import json
import pickle
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatclient import ChatModel, Prompt
from chatclient.errors import UsageError
from chatclient.options import NO_OPTIONS, ChatOptions, checked
from chatclient.providers.anthropic import AnthropicChatModel, AnthropicChatOptions
from chatclient.providers.gemini import GeminiChatModel, GeminiChatOptions
from chatclient.providers.ollama import OllamaChatModel, OllamaChatOptions
from chatclient.providers.openai import OpenAIChatModel, OpenAIChatOptions
from chatclient.providers.openai_responses import (
    OpenAIResponsesChatModel,
    OpenAIResponsesChatOptions,
)
from chatclient.tools import ToolRequest, tool_callbacks
from chatclient.values import EMPTY, FrozenDict


@dataclass(frozen=True, slots=True, kw_only=True)
class AcmeOptions(ChatOptions):
    """A provider's options."""

    effort: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AcmeVisionOptions(AcmeOptions):
    """Those of one of its models."""

    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherOptions(ChatOptions):
    """Another provider's options."""

    tier: str | None = None


# --- merge ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("below", "over", "merged"),
    [
        (ChatOptions(model="a"), ChatOptions(model="b"), ChatOptions(model="b")),
        (ChatOptions(model="a"), ChatOptions(seed=1), ChatOptions(model="a", seed=1)),
        (ChatOptions(temperature=1), ChatOptions(temperature=0), ChatOptions(temperature=0)),
        (ChatOptions(stop=("a",)), ChatOptions(stop=()), ChatOptions(stop=())),
        (
            ChatOptions(parallel_tool_calls=True),
            ChatOptions(parallel_tool_calls=False),
            ChatOptions(parallel_tool_calls=False),
        ),
        (
            ChatOptions(output_schema={"type": "object"}),
            ChatOptions(output_schema={"type": "array"}),
            ChatOptions(output_schema={"type": "array"}),
        ),
        (ChatOptions(stop=("a", "b")), ChatOptions(stop=("c",)), ChatOptions(stop=("c",))),
        (ChatOptions(stop=("b", "a")), ChatOptions(seed=1), ChatOptions(stop=("b", "a"), seed=1)),
    ],
)
def test_set_options_win(below: ChatOptions, over: ChatOptions, merged: ChatOptions) -> None:
    """An option that is set counts, be it zero, empty or False; one that is not changes nothing."""
    assert below.merge(over) == merged


@pytest.mark.parametrize("name", ["tool_context", "extra"])
@pytest.mark.parametrize(
    ("below", "over", "merged"),
    [
        ({"a": 1, "b": 1}, {"b": 2, "c": 2}, {"a": 1, "b": 2, "c": 2}),
        ({"a": 1}, {}, {"a": 1}),
        ({}, {"a": 1}, {"a": 1}),
        ({}, {}, {}),
    ],
)
def test_mappings_merge_key_by_key(
    name: str, below: dict[str, Any], over: dict[str, Any], merged: dict[str, Any]
) -> None:
    """Tool context and extra fields add up; the one nearer to the request wins per key."""
    one, other = NO_OPTIONS.mutate(**{name: below}), NO_OPTIONS.mutate(**{name: over})

    assert one.merge(other) == NO_OPTIONS.mutate(**{name: merged})


NUMBERS = st.none() | st.integers(0, 2)
ENTRIES = st.dictionaries(st.sampled_from("ab"), st.integers(0, 2)).map(FrozenDict)
OPTIONS = st.builds(ChatOptions, seed=NUMBERS, top_k=NUMBERS, tool_context=ENTRIES, extra=ENTRIES)


@given(OPTIONS, OPTIONS, OPTIONS)
def test_merging_is_associative(one: ChatOptions, two: ChatOptions, three: ChatOptions) -> None:
    """Defaults can be merged ahead of time: only the order of the layers counts."""
    assert one.merge(two).merge(three) == one.merge(two.merge(three))


@pytest.mark.parametrize("nothing", [None, NO_OPTIONS, ChatOptions()])
def test_merging_nothing_costs_nothing(nothing: ChatOptions | None) -> None:
    """Without changes the options are the same object."""
    options = AcmeOptions(effort="low")

    assert options.merge(nothing) is options


def test_options_show_what_is_set() -> None:
    """Those of providers as well; most of what they know is left to the model."""
    assert repr(ChatOptions()) == "ChatOptions()"
    for kind in (
        OpenAIChatOptions,
        OpenAIResponsesChatOptions,
        AnthropicChatOptions,
        GeminiChatOptions,
        OllamaChatOptions,
    ):
        shown = repr(kind(temperature=0.2, stop="END"))
        assert shown == f"{kind.__name__}(temperature=0.2, stop=('END',))"


def test_nothing_shows_what_only_tools_are_told() -> None:
    """Prompts are logged, and requests for tools; names are enough there."""
    options = ChatOptions(tool_context={"token": "secret", "id": 1})
    keyed: dict[Any, Any] = {"token": "secret", 7: "x"}

    assert repr(options) == "ChatOptions(tool_context=['id', 'token'])"
    assert repr(ChatOptions(tool_context=keyed)) == "ChatOptions(tool_context=[7, 'token'])"
    assert "secret" not in f"{Prompt('Hi', options)!r} {ToolRequest((), options.tool_context)!r}"


def test_options_of_nothing_are_replaced() -> None:
    """Laid over no options, a provider's options are themselves."""
    over = AcmeOptions(effort="low", extra=FrozenDict(a=1))

    assert NO_OPTIONS.merge(over) == over
    assert AcmeOptions().merge(over) == over


@pytest.mark.parametrize(
    ("below", "over", "merged"),
    [
        (
            AcmeOptions(effort="low", seed=1),
            ChatOptions(seed=2),
            AcmeOptions(effort="low", seed=2),
        ),
        (
            ChatOptions(model="a", seed=1),
            AcmeOptions(effort="low", seed=2),
            AcmeOptions(model="a", effort="low", seed=2),
        ),
        (
            AcmeOptions(effort="low"),
            AcmeVisionOptions(detail="high"),
            AcmeVisionOptions(effort="low", detail="high"),
        ),
        (
            AcmeVisionOptions(effort="low", detail="high"),
            AcmeOptions(effort="high"),
            AcmeVisionOptions(effort="high", detail="high"),
        ),
        (
            ChatOptions(extra=FrozenDict(a=1)),
            AcmeOptions(extra=FrozenDict(b=2)),
            AcmeOptions(extra=FrozenDict(a=1, b=2)),
        ),
    ],
)
def test_the_more_specific_type_wins(
    below: ChatOptions, over: ChatOptions, merged: ChatOptions
) -> None:
    """A provider's options stay what they are, whichever side they come from."""
    result = below.merge(over)

    assert result == merged
    assert type(result) is type(merged)


def test_foreign_options_are_dropped() -> None:
    """What only another provider knows does not reach this one; what both know does."""
    options = AcmeOptions(effort="low", seed=1)

    assert options.merge(OtherOptions(tier="fast", seed=2)) == AcmeOptions(effort="low", seed=2)
    assert options.merge(OtherOptions(tier="fast")) is options


# --- changes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "temperature",
        "top_p",
        "top_k",
        "max_tokens",
        "presence_penalty",
        "frequency_penalty",
        "seed",
    ],
)
def test_numbers_are_numbers(name: str) -> None:
    """A text in place of one is refused where it is given, however it is given."""
    wrong: Any = {name: "hot"}
    with pytest.raises(UsageError, match=f"{name} must be a number, not 'hot'"):
        ChatOptions(**wrong)
    with pytest.raises(UsageError, match=f"{name} must be a number, not 'hot'"):
        ChatOptions().mutate(**wrong)
    right: Any = {name: 1}
    assert getattr(ChatOptions(**right), name) == 1


@pytest.mark.parametrize("name", ["tool_context", "output_schema", "extra"])
@pytest.mark.parametrize("given", [["x"], "x", AcmeOptions])
def test_mappings_are_mappings(name: str, given: Any) -> None:
    """Such as a schema: a type in its place is refused where it is given."""
    with pytest.raises(UsageError, match=f"^{name} must be a Mapping, not "):
        NO_OPTIONS.mutate(**{name: given})


def test_mutate_changes_a_copy() -> None:
    """The options themselves stay as they were; None takes an option back."""
    options = AcmeOptions(effort="low", seed=1)

    assert options.mutate(seed=2) == AcmeOptions(effort="low", seed=2)
    assert options.mutate(seed=None) == AcmeOptions(effort="low")
    assert options == AcmeOptions(effort="low", seed=1)


@pytest.mark.parametrize("name", ["stop", "tool_names"])
@pytest.mark.parametrize(
    ("given", "expected"),
    [("END", ("END",)), (["b", "a"], ("b", "a")), ((), ()), (None, None)],
)
def test_one_text_stands_for_a_list_of_one(name: str, given: Any, expected: Any) -> None:
    """A single text is not taken for its letters, and lists keep their order."""
    assert getattr(NO_OPTIONS.mutate(**{name: given}), name) == expected


def test_given_mappings_may_change_afterwards() -> None:
    """Options keep what they were given, not the caller's dict."""
    mine = {"tenant": "acme"}
    options = NO_OPTIONS.mutate(tool_context=mine, extra=mine)

    mine["tenant"] = "changed"

    assert options.tool_context == {"tenant": "acme"}
    assert options.extra == {"tenant": "acme"}
    assert NO_OPTIONS.mutate(tool_context=None).tool_context is EMPTY


def test_unknown_options_are_refused() -> None:
    """A misspelt option is named, all of them at once, with the way for fields not modelled."""
    with pytest.raises(UsageError) as caught:
        AcmeOptions().mutate(temprature=1, seed=1, detail="high")

    assert str(caught.value) == (
        "AcmeOptions has no option 'detail', 'temprature'; did you mean 'temperature'? "
        "Otherwise send fields it does not model with extra={...}"
    )


def test_an_option_unlike_any_other_is_refused_without_a_guess() -> None:
    """Then it is a field that the provider may know."""
    with pytest.raises(UsageError) as caught:
        ChatOptions().mutate(safety_settings=[])

    assert str(caught.value) == (
        "ChatOptions has no option 'safety_settings'; "
        "send fields it does not model with extra={...}"
    )


def test_checked_values_construct_options() -> None:
    """What was checked is ready for the constructor; what was given stays as it was."""
    values = {"stop": "END", "detail": "high"}

    assert AcmeVisionOptions(**checked(AcmeVisionOptions, values)).stop == ("END",)
    assert values == {"stop": "END", "detail": "high"}


def test_set_options_are_known_by_name() -> None:
    """Only what was set is listed, so that everything else can stay default."""
    options = AcmeOptions(seed=0, effort="low", extra=FrozenDict(a=1))

    assert options.set_values() == {"seed": 0, "effort": "low", "extra": {"a": 1}}
    assert NO_OPTIONS.set_values() == {}


def test_options_pickle() -> None:
    """Options that went to another process are the same options."""
    options = AcmeOptions(effort="low", stop=("END",), extra=FrozenDict(a=1))

    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("model", "field", "set_before"),
    [
        (OpenAIChatModel(api_key="k"), "stream_options", {"include_usage": True}),
        (OpenAIResponsesChatModel(api_key="k"), "text", {"verbosity": "low"}),
        (AnthropicChatModel(api_key="k"), "metadata", {"user_id": "ada"}),
        (GeminiChatModel(api_key="k"), "generationConfig", {"temperature": 0.5}),
        (OllamaChatModel(), "options", {"temperature": 0.5}),
    ],
    ids=lambda value: value.provider if isinstance(value, ChatModel) else "",
)
def test_extra_fields_join_those_of_the_request(
    model: Any, field: str, set_before: dict[str, Any]
) -> None:
    """With every provider: no other option is lost, and none of the application's tools."""

    def look() -> str:
        """Look."""
        return ""

    extra = {"new": 1, "tools": [{"name": "theirs"}], field: {"type": "x"}}
    own = {name: value for name, value in OWN.items() if hasattr(model.options, name)}
    options = model.options.mutate(
        temperature=0.5, tool_callbacks=tool_callbacks(look), extra=extra, **own
    )
    how = {} if isinstance(model, GeminiChatModel) else {"streaming": True}
    body = json.loads(model._body(Prompt("x", options), **how))

    assert body["new"] == 1
    assert body[field] == {**body[field], **set_before, "type": "x"}
    assert len(body["tools"]) == 2
    assert body["tools"][1] == {"name": "theirs"}


OWN = {"verbosity": "low", "user_id": "ada"}


@pytest.mark.parametrize(
    ("model", "options", "extra"),
    [
        (
            OpenAIChatModel(api_key="k"),
            {"output_schema": {"type": "object"}},
            {"response_format": {"type": "json_object"}},
        ),
        (AnthropicChatModel(api_key="k"), {"thinking": 2000}, {"thinking": {"type": "adaptive"}}),
    ],
    ids=lambda value: value.provider if isinstance(value, ChatModel) else "",
)
def test_an_extra_object_of_another_type_takes_the_place_of_the_first(
    model: Any, options: dict[str, Any], extra: dict[str, Any]
) -> None:
    """Fields of the one mean nothing in the other, and services refuse them."""
    prompt = Prompt("x", model.options.mutate(**options, extra=extra))
    body = json.loads(model._body(prompt, streaming=False))

    assert {name: body[name] for name in extra} == extra
