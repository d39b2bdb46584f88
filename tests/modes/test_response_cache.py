"""Response caching: keys, stored responses and hits."""

import gc
import weakref
from typing import Any

import pytest

from chatclient import AssistantMessage, ChatClient, ChatResponse, Prompt, UserMessage, tool
from chatclient.advisors.guardrails.advisors import GuardrailResult, OutputGuardrailAdvisor
from chatclient.advisors.response_cache import (
    InMemoryResponseStore,
    ResponseCacheAdvisor,
    cache_key,
)
from chatclient.chain.params import CACHE_RESPONSES
from chatclient.chat.events import Done, ReasoningDelta, RoundEnded, TextDelta, ToolCallStarted
from chatclient.chat.messages import (
    Media,
    ProviderPart,
    Reasoning,
    ToolResponse,
    ToolResponseMessage,
)
from chatclient.chat.options import ChatOptions
from chatclient.chat.response import NO_USAGE, Generation, Usage
from chatclient.chat.tool import STEP
from chatclient.errors import ConnectionFailedError, UsageError, WrongTypeError
from chatclient.providers import WebSearch
from chatclient.providers.composite import FallbackChatModel
from chatclient.providers.local.model import LocalChatModel
from chatclient.providers.openai.chat import OpenAIChatModel
from chatclient.testing import Ask, Recording, RecordingModel, ScriptedModel, call
from chatclient.tools import ToolResult, tool_callbacks


def cached(model: ScriptedModel, **how: Any) -> ChatClient:
    return ChatClient.builder(model).default_advisors(ResponseCacheAdvisor(**how)).build()


@pytest.mark.feature("advisors-semantic-cache")
def test_the_same_question_is_answered_once(ask: Ask) -> None:
    """The second answer has no usage, and is marked as cached."""
    client = cached(ScriptedModel("Rome"))
    first, second = ask(client.prompt("?")), ask(client.prompt("?"))

    assert (first.text, second.text) == ("Rome", "Rome")
    assert first.response.chat_response.usage == Usage(10, 5)
    assert second.response.chat_response.usage == NO_USAGE
    assert second.response.chat_response.metadata.values["cached"] is True


def test_the_advisor_holds_on_to_no_request(ask: Ask) -> None:
    """The tool context is released after the request, not with the next one."""

    class Session:
        """An object of the tool context."""

    model, session = ScriptedModel("ok"), Session()
    client = cached(model)
    here = weakref.ref(session)
    ask(client.prompt("?").tool_context({"session": session}))
    del session
    model.prompts.clear()
    gc.collect()

    assert here() is None


def test_a_hit_is_streamed_like_any_answer(ask: Ask) -> None:
    """With reasoning, text and the end of the round."""
    message = AssistantMessage("Rome", reasoning=[Reasoning("Hm.")])
    client = cached(ScriptedModel(message, chunks=100))
    first, second = ask(client.prompt("?")), ask(client.prompt("?"))

    assert [type(e) for e in first.events] == [type(e) for e in second.events]
    if ask.streaming:
        kinds = [ReasoningDelta, TextDelta, RoundEnded, Done]
        assert [type(e) for e in second.events] == kinds


def test_modes_share_one_store(ask: Ask) -> None:
    """The response of a call serves a stream, and the other way round."""
    client = cached(ScriptedModel("Rome"))
    ask(client.prompt("?"))

    assert client.prompt("?").call().content() == "Rome"
    assert "".join(client.prompt("?").stream()) == "Rome"


@tool
def look_up(word: str) -> str:
    """Look a word up."""
    return word


SAME = [
    (Prompt("a"), Prompt([UserMessage("a", metadata={"seen": object()})])),
    (
        Prompt([UserMessage("a", metadata={"x": {"y": 1, "z": 2}, "name": "b"})]),
        Prompt([UserMessage("a", metadata={"name": "b", "x": {"z": 2, "y": 1}})]),
    ),
    (Prompt("a", ChatOptions(tool_context={"user": 1})), Prompt("a")),
    (
        Prompt("a", ChatOptions(extra={"x": 1, "y": 2})),
        Prompt("a", ChatOptions(extra={"y": 2, "x": 1})),
    ),
]
OTHER = [
    Prompt("a"),
    Prompt("b"),
    Prompt([UserMessage("a", [Media("image/png", b"1")])]),
    Prompt([UserMessage("a", [Media("image/png", b"1", metadata={"detail": "low"})])]),
    Prompt([UserMessage("a", [Media("image/png", b"1", metadata={"detail": "high"})])]),
    Prompt([UserMessage("a", metadata={"name": "alice"})]),
    Prompt([UserMessage("a", metadata={"name": "bob"})]),
    Prompt([ToolResponseMessage([ToolResponse("1", "x", "y")])]),
    Prompt([ToolResponseMessage([ToolResponse("1", "x", "y", metadata={STEP: True})])]),
    Prompt([UserMessage("a"), AssistantMessage("b"), UserMessage("c")]),
    Prompt("a", ChatOptions(temperature=1)),
    Prompt("a", ChatOptions(model="other")),
    Prompt("a", ChatOptions(output_schema={"type": "object"})),
    Prompt("a", ChatOptions(tool_callbacks=tuple(tool_callbacks(look_up)))),
    Prompt("a", ChatOptions(extra={"x": {"y": 1}})),
    Prompt("a", ChatOptions(tool_callbacks=[WebSearch()])),
    Prompt("a", ChatOptions(tool_callbacks=[WebSearch(allowed_domains="a.org")])),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_what_is_not_sent_makes_no_difference(one: Prompt, other: Prompt) -> None:
    """Objects in metadata, tool context, and the order of fields."""
    assert cache_key(one) == cache_key(other)


def test_what_is_sent_makes_a_difference() -> None:
    """Messages with their media and metadata, options, and the definitions of tools."""
    assert len({cache_key(prompt) for prompt in OTHER}) == len(OTHER)


@pytest.mark.feature("advisors-semantic-cache")
def test_tools_run_again_and_decide_what_comes_next(ask: Ask) -> None:
    """Each round has an entry; other tool results have another key."""
    results = ["sunny", "sunny", "rainy"]

    @tool
    def weather() -> str:
        """Tell the weather."""
        return results.pop(0)

    model = ScriptedModel(call("weather"), "It is sunny.", "It is rainy.")
    client = cached(model).mutate().default_tools(weather).build()
    texts = [ask(client.prompt("?")) for _ in range(3)]

    assert [result.text for result in texts] == ["It is sunny.", "It is sunny.", "It is rainy."]
    assert len(model.prompts) == 3
    assert all(len(result.executions) == 1 for result in texts)
    if ask.streaming:
        assert any(isinstance(event, ToolCallStarted) for event in texts[1].events)


def test_errors_are_never_kept(ask: Ask) -> None:
    """The next request calls the model."""
    client = cached(ScriptedModel(ConnectionFailedError("no"), "ok"))
    with pytest.raises(ConnectionFailedError):
        ask(client.prompt("?"))

    assert ask(client.prompt("?")).text == "ok"


@pytest.mark.parametrize("reason", ["length", "content_filter", "error", None])
def test_incomplete_answers_are_never_kept(ask: Ask, reason: Any) -> None:
    """Truncated, filtered and unfinished answers are not stored."""
    half = ChatResponse((Generation(AssistantMessage("half"), reason),))
    client = cached(ScriptedModel(half, "whole"))
    ask(client.prompt("?"))

    assert ask(client.prompt("?")).text == "whole"


@pytest.mark.parametrize(
    "empty",
    [
        *(ChatResponse(), ChatResponse.of(""), ChatResponse.of(" \n"), AssistantMessage([""])),
        AssistantMessage([Reasoning("Which city?")]),
    ],
)
def test_empty_answers_are_never_kept(ask: Ask, empty: Any) -> None:
    """A response without text and calls is not stored."""
    client = cached(ScriptedModel(empty, "whole"))
    ask(client.prompt("?"))

    assert ask(client.prompt("?")).text == "whole"


def test_a_request_can_stay_away(ask: Ask) -> None:
    """It neither reads nor writes the cache."""
    client = cached(ScriptedModel("a", "b", "c"))
    away = client.prompt("?").advisor_params({CACHE_RESPONSES: False})

    assert [ask(r).text for r in (client.prompt("?"), away, client.prompt("?"))] == ["a", "b", "a"]


class Remote:
    """A store of another kind, asynchronous."""

    def __init__(self) -> None:
        self.kept: dict[str, ChatResponse] = {}

    async def get(self, key: str) -> ChatResponse | None:
        return self.kept.get(key)

    async def put(self, key: str, response: ChatResponse) -> None:
        self.kept[key] = response


def test_any_store_will_do(ask: Ask) -> None:
    """Plain and asynchronous stores, also in blocking requests."""
    store = Remote()
    client = cached(ScriptedModel("Rome"), store=store)

    assert [ask(client.prompt("?")).text for _ in range(2)] == ["Rome", "Rome"]
    assert len(store.kept) == 1


def test_a_store_has_to_return_a_response(ask: Ask) -> None:
    """A store that returns the text of a response raises an error."""

    class Texts(InMemoryResponseStore):
        def get(self, key: str) -> Any:
            return "Rome"

    with pytest.raises(WrongTypeError, match="store returns must be a ChatResponse, not 'Rome'"):
        ask(cached(ScriptedModel("Rome"), store=Texts()).prompt("?"))


def test_a_subclass_of_the_store_can_be_async(ask: Ask) -> None:
    """Its methods may be coroutines."""

    class Slow(InMemoryResponseStore):
        async def get(self, key: str) -> ChatResponse | None:  # type: ignore[override]
            return super().get(key)

    client = cached(ScriptedModel("Rome"), store=Slow())

    assert [ask(client.prompt("?")).text for _ in range(2)] == ["Rome", "Rome"]


def test_the_store_forgets_what_is_old_and_what_is_unused() -> None:
    """Entries are removed by age, and by number."""
    now = [0.0]
    store = InMemoryResponseStore(max_entries=2, time_to_live=10, clock=lambda: now[0])
    answers = {key: ChatResponse.of(key) for key in "abc"}
    store.put("a", answers["a"])
    store.put("b", answers["b"])
    store.get("a")
    store.put("c", answers["c"])

    assert [store.get(key) for key in "abc"] == [answers["a"], None, answers["c"]]
    now[0] = 10
    assert store.get("a") is None
    assert len(store) == 1


@pytest.mark.parametrize("wrong", [{"max_entries": 0}, {"time_to_live": 0}])
def test_a_store_has_to_keep_something(wrong: Any) -> None:
    """A store of zero entries or zero seconds is refused."""
    with pytest.raises(UsageError):
        InMemoryResponseStore(**wrong)


def test_a_store_may_keep_for_ever() -> None:
    """Without a time limit, entries do not expire."""
    store = InMemoryResponseStore(time_to_live=None, clock=lambda: 1e12)
    store.put("a", ChatResponse.of("a"))

    assert store.get("a") == ChatResponse.of("a")


def test_models_that_share_a_store_do_not_share_answers(ask: Ask) -> None:
    """Models differ in their name, in their provider, or in where they are asked."""

    class Placed(ScriptedModel):
        def __init__(self, address: str, name: str, provider: str) -> None:
            super().__init__(f"{provider}:{name} at {address}")
            self._place = (address, name, provider)

        @property
        def address(self) -> str:
            return self._place[0]

        @property
        def name(self) -> str:
            return self._place[1]

        @property
        def provider(self) -> str:
            return self._place[2]

    store = InMemoryResponseStore()
    places = [("a", "m", "p"), ("b", "m", "p"), ("a", "n", "p"), ("a", "m", "q")]
    answers = [ask(cached(Placed(*place), store=store).prompt("?")).text for place in places]

    assert answers == ["p:m at a", "p:m at b", "p:n at a", "q:m at a"]


def test_an_address_distinguishes_servers_without_secrets() -> None:
    """A fallback has those of all its models, a recorded model that of the real one."""
    first = OpenAIChatModel("m", api_key="k", base_url="http://user:secret@a/v1")
    both = FallbackChatModel(first, LocalChatModel(model_path="/models/b.gguf"), LocalChatModel())

    assert both.address == "http://a/v1 → /models/b.gguf → "
    assert RecordingModel(first, Recording()).address == "http://a/v1"
    assert ScriptedModel().address == ""


def test_the_cache_ignores_metadata_of_tool_results(ask: Ask) -> None:
    """It is not sent: how long a tool took, or an object for the application."""

    @tool
    def timed() -> ToolResult:
        """Take some time."""
        picture = Media("image/png", b"1", metadata={"taken": object()})
        took = {"handle": object(), "took": next(times)}
        return ToolResult("x", media=(picture,), metadata=took)

    times = iter(range(9))

    model = ScriptedModel(call("timed"), "done")
    builder = ChatClient.builder(model).default_tools(timed)
    client = builder.default_advisors(ResponseCacheAdvisor()).build()

    assert [ask(client.prompt("?")).text for _ in range(2)] == ["done", "done"]
    assert len(model.prompts) == 2


def test_provider_data_is_part_of_the_cache_key() -> None:
    """Also a field that is called `metadata`."""
    keys = {
        cache_key(Prompt([AssistantMessage([ProviderPart("x", {"type": "y", "metadata": each})])]))
        for each in ("a", "b")
    }

    assert len(keys) == 2


def test_a_failing_store_does_not_fail_the_request(
    ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    """If the store is full, that is logged."""

    class Full:
        def get(self, key: str) -> None:
            return None

        async def put(self, key: str, response: ChatResponse) -> None:
            raise OSError("no room")

    result = ask(cached(ScriptedModel("Rome"), store=Full()).prompt("?"))

    assert result.text == "Rome"
    assert "no room" in caplog.text


def test_a_store_that_cannot_be_read_is_ignored(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    """The failure is logged, and the model is called."""

    class Down:
        async def get(self, key: str) -> None:
            raise ConnectionError("nobody there")

        def put(self, key: str, response: ChatResponse) -> None:
            raise ConnectionError("nobody there")

    client = cached(ScriptedModel("Rome", "Rome"), store=Down())

    assert [ask(client.prompt("?")).text for _ in range(2)] == ["Rome", "Rome"]
    assert caplog.text.count("nobody there") == 4


def test_a_retry_asks_the_model_and_keeps_what_passed(ask: Ask) -> None:
    """A refused answer is not read from the cache in the retry."""

    def in_english(answer: ChatResponse) -> GuardrailResult | None:
        return GuardrailResult.retry("not English") if "Ciao" in answer.text else None

    model = ScriptedModel("Ciao!", "Hello!")
    guard = OutputGuardrailAdvisor(in_english)
    client = ChatClient.builder(model).default_advisors(guard, ResponseCacheAdvisor()).build()

    assert [ask(client.prompt("?")).text for _ in range(2)] == ["Hello!", "Hello!"]
    assert len(model.prompts) == 2


def test_a_retry_obeys_the_cache_setting(ask: Ask) -> None:
    """If the application has disabled the cache for a request, a retry does not enable it."""
    store = InMemoryResponseStore()
    guard = OutputGuardrailAdvisor(
        lambda answer: GuardrailResult.retry("no") if answer.text == "a" else None
    )
    builder = ChatClient.builder(ScriptedModel("a", "b"))
    client = builder.default_advisors(guard, ResponseCacheAdvisor(store)).build()

    assert ask(client.prompt("?").advisor_params({CACHE_RESPONSES: False})).text == "b"
    assert len(store) == 0
