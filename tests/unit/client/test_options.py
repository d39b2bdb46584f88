"""Options: merging, changes and validation."""

import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from hypothesis import given, strategies as st

from chatclient import ChatClient, ChatModel, Prompt
from chatclient._internal.frozen import EMPTY, FrozenDict
from chatclient.chat.options import NO_OPTIONS, ChatOptions, check_options
from chatclient.errors import OverloadedError, UnsupportedOptionError, UsageError
from chatclient.providers.anthropic.model import AnthropicChatModel, AnthropicChatOptions
from chatclient.providers.composite import FallbackChatModel, RoutingChatModel
from chatclient.providers.gemini.model import GeminiChatModel, GeminiChatOptions
from chatclient.providers.ollama.model import OllamaChatModel, OllamaChatOptions
from chatclient.providers.openai.chat import OpenAIChatModel, OpenAIChatOptions
from chatclient.providers.openai.responses import (
    OpenAIResponsesChatModel,
    OpenAIResponsesChatOptions,
)
from chatclient.testing import Ask, ScriptedModel
from chatclient.tools import ToolRequest, tool_callbacks


@dataclass(frozen=True, slots=True, kw_only=True)
class AcmeOptions(ChatOptions):
    """Options of a provider."""

    effort: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AcmeVisionOptions(AcmeOptions):
    """Options of one of its models."""

    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherOptions(ChatOptions):
    """Options of another provider."""

    tier: str | None = None


# --- merge ----------------------------------------------------------------------------------


@pytest.mark.feature(
    "merge-options-replaced-wholesale",
    "merge-combine-stop-sequences-concatenated",
    "tool-options-merge-tool-callbacks-context",
    "options-combine",
    "lc4j-chat-request-parameters-override",
)
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
def test_merge(below: ChatOptions, over: ChatOptions, merged: ChatOptions) -> None:
    """Set options win, also zero, empty or False; unset ones change nothing."""
    assert below.merge(over) == merged


@pytest.mark.feature("tool-options-tool-context", "tool-options-merge-tool-callbacks-context")
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
    """Tool context and extra fields are merged by key; the later wins."""
    one, other = NO_OPTIONS.mutate(**{name: below}), NO_OPTIONS.mutate(**{name: over})

    assert one.merge(other) == NO_OPTIONS.mutate(**{name: merged})


NUMBERS = st.none() | st.integers(0, 2)
ENTRIES = st.dictionaries(st.sampled_from("ab"), st.integers(0, 2)).map(FrozenDict)
OPTIONS = st.builds(ChatOptions, seed=NUMBERS, top_k=NUMBERS, tool_context=ENTRIES, extra=ENTRIES)


@pytest.mark.feature("merge-combine-stop-sequences-concatenated", "options-combine")
@given(OPTIONS, OPTIONS, OPTIONS)
def test_merging_is_associative(one: ChatOptions, two: ChatOptions, three: ChatOptions) -> None:
    """Only the order of layers matters."""
    assert one.merge(two).merge(three) == one.merge(two.merge(three))


@pytest.mark.parametrize("nothing", [None, NO_OPTIONS, ChatOptions()])
def test_merge_without_changes(nothing: ChatOptions | None) -> None:
    """Without changes the same object is returned."""
    options = AcmeOptions(effort="low")

    assert options.merge(nothing) is options


def test_repr() -> None:
    """The repr shows set options only."""
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


def test_repr_has_no_tool_context_values() -> None:
    """The repr has the keys of the tool context only."""
    options = ChatOptions(tool_context={"token": "secret", "id": 1})
    keyed: dict[Any, Any] = {"token": "secret", 7: "x"}

    assert repr(options) == "ChatOptions(tool_context=['id', 'token'])"
    assert repr(ChatOptions(tool_context=keyed)) == "ChatOptions(tool_context=[7, 'token'])"
    assert "secret" not in f"{Prompt('Hi', options)!r} {ToolRequest((), options.tool_context)!r}"


def test_merge_over_no_options() -> None:
    """Merged over empty options, provider options are unchanged."""
    over = AcmeOptions(effort="low", extra=FrozenDict(a=1))

    assert NO_OPTIONS.merge(over) == over
    assert AcmeOptions().merge(over) == over


@pytest.mark.feature("merge-options-another-provider")
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
def test_merged_type(below: ChatOptions, over: ChatOptions, merged: ChatOptions) -> None:
    """The more specific type is kept, whichever side has it."""
    result = below.merge(over)

    assert result == merged
    assert type(result) is type(merged)


@pytest.mark.feature("merge-options-another-provider")
def test_options_of_another_provider() -> None:
    """Common options are kept; others raise, or are dropped if they are defaults."""
    options, other = AcmeOptions(effort="low", seed=1), OtherOptions(tier="fast", seed=2)
    with pytest.raises(UnsupportedOptionError, match=r"OtherOptions sets .* 'tier', which Acme"):
        options.merge(other)

    assert options.merge(OtherOptions(seed=2)) == AcmeOptions(effort="low", seed=2)
    assert options.merge(other.as_defaults()) == AcmeOptions(effort="low", seed=2)
    assert options.merge(OtherOptions(tier="fast").as_defaults()) is options


@pytest.mark.feature("merge-options-another-provider")
def test_options_of_another_provider_are_not_sent(ask: Ask) -> None:
    """Those of a request and of a client raise before the model is called."""
    model, other = ScriptedModel("Hi", options=AcmeOptions()), OtherOptions(tier="fast")
    client = ChatClient.create(model)
    for mistake in (
        lambda: ask(client.prompt("Hi").options(other)),
        lambda: model.call(Prompt("Hi", other)),
        lambda: client.mutate().default_options(other).build(),
        lambda: ask(client.prompt("Hi").model(OpenAIChatModel(api_key="k")).options(other)),
        lambda: OpenAIChatModel(api_key="k", options=AnthropicChatOptions(thinking=4000)),
    ):
        with pytest.raises(UnsupportedOptionError):
            mistake()

    assert model.prompts == []


def test_options_of_the_model_before(ask: Ask) -> None:
    """Defaults of a client whose model is replaced are dropped if the other lacks them."""
    acme = ScriptedModel("Hi", options=AcmeOptions())
    other = ScriptedModel(lambda prompt: "Hi", options=OtherOptions())
    client = ChatClient.builder(acme).default_options(effort="low", seed=1).build()  # type: ignore[call-arg]
    ask(client.prompt("Hi").model(other).options(OtherOptions(tier="fast")))
    ask(client.mutate().model(other).build().prompt("Hi"))

    expected = [OtherOptions(tier="fast", seed=1), OtherOptions(seed=1)]
    assert [prompt.options for prompt in other.prompts] == expected


@pytest.mark.parametrize("kind", [FallbackChatModel, partial(RoutingChatModel, lambda _: None)])
def test_options_of_one_of_several_models(ask: Ask, kind: Callable[..., ChatModel]) -> None:
    """Options of one of the models are for that one; those of none raise."""
    acme = ScriptedModel(lambda prompt: OverloadedError("busy"), options=AcmeOptions())
    other = ScriptedModel("Hi", options=OtherOptions())
    models = [acme, other] if kind is FallbackChatModel else [other, acme]
    client = ChatClient.create(kind(*models))
    with pytest.raises(UnsupportedOptionError, match="'thinking'"):
        ask(client.prompt("Hi").options(AnthropicChatOptions(thinking=4000)))
    assert (acme.prompts, other.prompts) == ([], [])

    ask(client.prompt("Hi").options(AcmeOptions(effort="low", seed=1)))

    assert [prompt.options for prompt in other.prompts] == [OtherOptions(seed=1)]
    assert all(prompt.options == AcmeOptions(effort="low", seed=1) for prompt in acme.prompts)


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
def test_number_types(name: str) -> None:
    """A string instead of a number raises."""
    wrong: Any = {name: "hot"}
    with pytest.raises(UsageError, match=f"{name} must be a number, not 'hot'"):
        ChatOptions(**wrong)
    with pytest.raises(UsageError, match=f"{name} must be a number, not 'hot'"):
        ChatOptions().mutate(**wrong)
    right: Any = {name: 1}
    assert getattr(ChatOptions(**right), name) == 1


@pytest.mark.parametrize("name", ["tool_context", "output_schema", "extra"])
@pytest.mark.parametrize("given", [["x"], "x", AcmeOptions])
def test_mapping_types(name: str, given: Any) -> None:
    """A type instead of a mapping raises."""
    with pytest.raises(UsageError, match=f"^{name} must be a Mapping, not "):
        NO_OPTIONS.mutate(**{name: given})


@pytest.mark.feature("tool-options-immutable-getters", "options-mutate")
def test_mutate() -> None:
    """The original is unchanged; None unsets an option."""
    options = AcmeOptions(effort="low", seed=1)

    assert options.mutate(seed=2) == AcmeOptions(effort="low", seed=2)
    assert options.mutate(seed=None) == AcmeOptions(effort="low")
    assert options == AcmeOptions(effort="low", seed=1)


@pytest.mark.feature("options-order-stop-sequences-kept")
@pytest.mark.parametrize("name", ["stop", "tool_names"])
@pytest.mark.parametrize(
    ("given", "expected"),
    [("END", ("END",)), (["b", "a"], ("b", "a")), ((), ()), (None, None)],
)
def test_single_string(name: str, given: Any, expected: Any) -> None:
    """A string is a list of one, and lists keep their order."""
    assert getattr(NO_OPTIONS.mutate(**{name: given}), name) == expected


@pytest.mark.feature("tool-options-immutable-getters")
def test_mappings_are_copied() -> None:
    """Options are independent of the given dict."""
    mine = {"tenant": "acme"}
    options = NO_OPTIONS.mutate(tool_context=mine, extra=mine)

    mine["tenant"] = "changed"

    assert options.tool_context == {"tenant": "acme"}
    assert options.extra == {"tenant": "acme"}
    assert NO_OPTIONS.mutate(tool_context=None).tool_context is EMPTY


@pytest.mark.feature("options-unknown-option")
def test_unknown_options() -> None:
    """The error names all unknown options and `extra`."""
    with pytest.raises(UsageError) as caught:
        AcmeOptions().mutate(temprature=1, seed=1, detail="high")

    assert str(caught.value) == (
        "AcmeOptions has no option 'detail', 'temprature'; did you mean 'temperature'? "
        "Otherwise send fields it does not model with extra={...}"
    )


def test_unknown_option_without_suggestion() -> None:
    """The error suggests nothing if no option is similar."""
    with pytest.raises(UsageError) as caught:
        ChatOptions().mutate(safety_settings=[])

    assert str(caught.value) == (
        "ChatOptions has no option 'safety_settings'; "
        "send fields it does not model with extra={...}"
    )


def test_checked_values() -> None:
    """Validated values are ready for the constructor; the input is unchanged."""
    values = {"stop": "END", "detail": "high"}

    assert AcmeVisionOptions(**check_options(AcmeVisionOptions, values)).stop == ("END",)
    assert values == {"stop": "END", "detail": "high"}


def test_set_options() -> None:
    """Only set options are listed."""
    options = AcmeOptions(seed=0, effort="low", extra=FrozenDict(a=1))

    assert options.set_values() == {"seed": 0, "effort": "low", "extra": {"a": 1}}
    assert NO_OPTIONS.set_values() == {}


def test_pickle() -> None:
    """Pickled options are equal."""
    options = AcmeOptions(effort="low", stop=("END",), extra=FrozenDict(a=1))

    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.feature("options-fields-nobody-models")
@pytest.mark.parametrize(
    ("model", "field", "set_before"),
    [
        (OpenAIChatModel("gpt-4.1", api_key="k"), "stream_options", {"include_usage": True}),
        (OpenAIResponsesChatModel("gpt-4.1", api_key="k"), "text", {"verbosity": "low"}),
        (AnthropicChatModel(api_key="k"), "metadata", {"user_id": "ada"}),
        (GeminiChatModel(api_key="k"), "generationConfig", {"temperature": 0.5}),
        (OllamaChatModel(), "options", {"temperature": 0.5}),
    ],
    ids=lambda value: value.provider if isinstance(value, ChatModel) else "",
)
def test_extra_fields(model: Any, field: str, set_before: dict[str, Any]) -> None:
    """With every provider extra fields are added to options and tools."""

    def look() -> str:
        """Look."""
        return ""

    extra = {"new": 1, "tools": [{"name": "theirs"}], field: {"type": "x"}}
    own = {name: value for name, value in OWN.items() if hasattr(model.options, name)}
    options = model.options.mutate(
        temperature=0.5, tool_callbacks=tool_callbacks(look), extra=extra, **own
    ).as_defaults()
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
def test_extra_object_of_another_type(
    model: Any, options: dict[str, Any], extra: dict[str, Any]
) -> None:
    """An extra object with another type replaces the first."""
    prompt = Prompt("x", model.options.mutate(**options, extra=extra))
    body = json.loads(model._body(prompt, streaming=False))

    assert {name: body[name] for name in extra} == extra
