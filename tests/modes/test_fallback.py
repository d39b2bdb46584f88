"""Fallback to another model."""

import asyncio
import json
import logging
import re
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from chatclient import ChatClient, ChatOptions, ChatResponse, Prompt, tool
from chatclient.chat.response import ChatResponseMetadata, Usage
from chatclient.errors import OverloadedError, UsageError
from chatclient.providers.compatible import compatible_model
from chatclient.providers.composite import FallbackChatModel
from chatclient.providers.openai.chat import OpenAIChatModel
from chatclient.runtime.observation import Operation, Step
from chatclient.runtime.runtime import Runtime
from chatclient.testing import Ask, Mode, ScriptedModel, call
from tests.support.loopback import LoopbackServer
from tests.support.servers import ChatServer, Reply
from tests.support.services import SERVICES, Service


def failing(text: str = "busy") -> ScriptedModel:
    return ScriptedModel(lambda prompt: OverloadedError(text))


@pytest.mark.feature("observation-another-model-when-one")
def test_the_next_model_answers_when_one_fails(ask: Ask) -> None:
    """The first model without an error answers; later ones are not called."""
    last = ScriptedModel("never")
    model = FallbackChatModel(failing(), ScriptedModel("second"), last)

    assert ask(ChatClient.create(model).prompt("Hi")).text == "second"
    assert last.prompts == []


def test_when_all_fail_the_last_error_is_raised(ask: Ask) -> None:
    """If every model fails, the last error is raised."""
    client = ChatClient.create(FallbackChatModel(failing("one"), failing("two")))

    with pytest.raises(OverloadedError, match="two"):
        ask(client.prompt("Hi"))


def test_other_errors_are_raised_immediately(ask: Ask) -> None:
    """Only the chosen errors cause a fallback."""
    never = ScriptedModel("never")
    broken = ScriptedModel(lambda prompt: LookupError("bug"))
    with pytest.raises(LookupError):
        ask(ChatClient.create(FallbackChatModel(broken, never)).prompt("Hi"))
    chosen = FallbackChatModel(broken, ScriptedModel("ok"), on=lambda e: "bug" in str(e))

    assert ask(ChatClient.create(chosen).prompt("Hi")).text == "ok"
    assert never.prompts == []


@pytest.mark.parametrize("on", [OverloadedError, [OverloadedError], {OverloadedError, KeyError}])
def test_errors_are_chosen_by_one_type_or_several(ask: Ask, on: Any) -> None:
    """Any other error is raised."""
    model = FallbackChatModel(failing(), ScriptedModel("ok"), on=on)
    broken = FallbackChatModel(ScriptedModel(LookupError("bug")), ScriptedModel("never"), on=on)

    assert ask(ChatClient.create(model).prompt("Hi")).text == "ok"
    with pytest.raises(LookupError, match="bug"):
        ask(ChatClient.create(broken).prompt("Hi"))


def test_a_wrong_tool_call_is_no_failure_of_the_model(
    ask: Ask, chat_server: Callable[..., ChatServer]
) -> None:
    """Groq reports one as an error; the model gets an error result, without a fallback."""
    written = {"name": "add", "arguments": {"a": "one"}}
    error = {"message": "no", "code": "tool_use_failed", "failed_generation": json.dumps(written)}
    server = chat_server(Reply(json.dumps({"error": error}).encode(), 400), "2")
    groq = compatible_model("groq", "m", api_key="k", base_url=server.url)

    def add(a: int) -> int:
        return a + 1

    with FallbackChatModel(groq, ScriptedModel(["asked in vain"])) as model:
        asked = ask(ChatClient.create(model).prompt("1 + 1?").tools(add))

    assert asked.text == "2"
    assert "should be a valid integer" in server.requests[1]["messages"][-1]["content"]


def test_each_model_has_its_own_options(ask: Ask) -> None:
    """A model's name is its own; what the request sets goes to all."""
    first = ScriptedModel(lambda p: OverloadedError("busy"), options=ChatOptions(model="a"))
    second = ScriptedModel("ok", options=ChatOptions(model="b"))
    ask(ChatClient.create(FallbackChatModel(first, second)).prompt("Hi").options(top_p=0.5))

    options = first.prompts[0].options, second.prompts[0].options
    assert [(o.model, o.top_p) for o in options] == [("a", 0.5), ("b", 0.5)]


def test_a_started_stream_is_not_restarted() -> None:
    """After the first text, the error is raised, because the text was streamed."""

    class Breaks(ScriptedModel):
        async def generate_stream(
            self, prompt: Prompt, runtime: Runtime
        ) -> AsyncGenerator[ChatResponse | str, None]:
            yield "half"
            raise OverloadedError("broke off")

    pieces: list[str] = []
    with pytest.raises(OverloadedError, match="broke off"):
        pieces.extend(
            ChatClient.create(FallbackChatModel(Breaks(), ScriptedModel("never")))
            .prompt("Hi")
            .stream()
        )

    assert pieces in ([], ["half"])


def as_events(*events: dict[str, Any]) -> bytes:
    told = (f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    return "".join(told).encode()


STARTS = {
    "responses": as_events(
        {"type": "response.created", "response": {"id": "r", "model": "m", "output": []}},
        {"type": "error", "error": {"code": "rate_limit_exceeded", "message": "Slow down"}},
    ),
    "anthropic": as_events(
        {"type": "message_start", "message": {"id": "m", "model": "m", "content": []}},
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
    ),
}


@pytest.mark.parametrize("service", [s for s in SERVICES if s.name in STARTS], ids=str)
@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_fallback_before_the_first_text(service: Service, mode: Mode) -> None:
    """An id and a model name are no answer: the next model is called."""

    def reply(path: str, headers: dict[str, str], request: dict[str, Any]) -> Reply:
        return Reply(STARTS[service.name], content_type="text/event-stream")

    with LoopbackServer(reply) as server, service.model(server.url) as first:
        model = FallbackChatModel(first, ScriptedModel("second"))
        result = Ask(mode)(ChatClient.create(model).prompt("Hi"))

    assert result.text == "second"
    assert result.response.chat_response.metadata.id not in ("r", "m")


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_chunks_without_text_are_kept(mode: Mode) -> None:
    """The id and usage are those of the model that answers, also without a text."""
    usage = ChatResponse((), ChatResponseMetadata(usage=Usage(1, 2)))

    class Streams(ScriptedModel):
        words: tuple[str, ...] = ()

        async def generate_stream(
            self, prompt: Prompt, runtime: Runtime
        ) -> AsyncGenerator[ChatResponse | str, None]:
            yield ChatResponse((), ChatResponseMetadata(id="an id"))
            for word in ("", *self.words):
                yield word
            yield usage

    for words in ((), ("one ", "two")):
        model = Streams()
        model.words = words
        result = Ask(mode)(ChatClient.create(FallbackChatModel(model)).prompt("Hi"))

        assert result.text == "".join(words)
        assert result.response.chat_response.metadata.id == "an id"
        assert result.response.chat_response.usage.total_tokens == 3


def test_a_fallback_closes_and_names_all_its_models() -> None:
    """Its name has all models, and closing it closes them."""
    closed: list[str] = []

    class Closing(ScriptedModel):
        def close(self) -> None:
            closed.append(self.name)

    model = FallbackChatModel(
        Closing(options=ChatOptions(model="a")), Closing(options=ChatOptions(model="b"))
    )
    with model:
        assert model.name == "a → b"

    async def main() -> None:
        async with model:
            pass

    asyncio.run(main())
    assert closed == ["a", "b", "a", "b"]
    with pytest.raises(UsageError):
        FallbackChatModel()


@pytest.mark.feature("observation-another-model-when-one")
def test_the_trail_has_the_model_that_answered(ask: Ask) -> None:
    """Spans have its name as well, and an event for the fallback."""
    seen: list[Step] = []

    class Watching:
        def begin(self, operation: Operation) -> "Watching":
            return self

        def end(self, ended: Step, error: BaseException | None) -> None:
            seen.append(ended)

    first = ScriptedModel(OverloadedError("busy"), options=ChatOptions(model="a"))
    second = ScriptedModel("ok", options=ChatOptions(model="b"))
    builder = ChatClient.builder(FallbackChatModel(first, second)).observers(Watching())
    trail = ask(builder.build().prompt("Hi")).response.trail

    assert trail is not None
    assert (trail.rounds[0].model, trail.rounds[0].fallbacks) == ("b", ("a (OverloadedError)",))
    assert "in place of a (OverloadedError)" in str(trail)
    assert seen[0].operation.attributes()["chatclient.fallback.failed"] == "a"
    assert seen[1].found["gen_ai.request.model"] == "b"
    assert seen[1].found["gen_ai.provider.name"] == "scripted"


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (Reply(b"my PIN is 1234"), "error='(InvalidResponse|StreamInterrupted)Error'"),
        (Reply(b'{"error": {"message": "no such model"}}', 404), "no such model"),
    ],
)
def test_the_log_has_the_reason_without_the_answer(
    ask: Ask,
    chat_server: Callable[..., ChatServer],
    caplog: pytest.LogCaptureFixture,
    reply: Reply,
    told: str,
) -> None:
    """Messages of the provider are logged, and invalid answers are not."""
    caplog.set_level(logging.INFO, "chatclient")
    broken = OpenAIChatModel("m", api_key="test", base_url=chat_server(reply).url)

    ask(ChatClient.create(FallbackChatModel(broken, ScriptedModel("ok"))).prompt("Hi"))

    (line,) = (message for message in caplog.messages if message.startswith("fallback"))
    assert re.search(told, line)
    assert "1234" not in line


@pytest.mark.feature("observation-another-model-when-one")
def test_a_turn_continues_with_the_model_that_answered(ask: Ask) -> None:
    """A model that failed is called last in the turn, and first in the next one."""

    @tool
    def look() -> str:
        """Look."""
        return "seen"

    busy = OverloadedError("busy")
    first = ScriptedModel(busy, "back again", "in time")
    second = ScriptedModel(call("look"), busy)
    client = ChatClient.builder(FallbackChatModel(first, second)).default_tools(look).build()

    assert ask(client.prompt("Hi")).text == "back again"
    assert [len(model.prompts) for model in (first, second)] == [2, 2]
    assert ask(client.prompt("Hi")).text == "in time"
