"""A model without a client: the same four ways of calling."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from conftest import Ask, Mode

from chatclient import (
    AssistantMessage,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ChatModel,
    ChatOptions,
    ChatResponse,
    Next,
    Prompt,
    UserMessage,
)
from chatclient.errors import StreamInterruptedError, UsageError, WrongTypeError
from chatclient.events import TextDelta
from chatclient.runtime import Runtime
from chatclient.testing import ScriptedModel, call
from chatclient.tools import tool, tool_callbacks


class Plain(ChatModel):
    """A model that cannot stream and has nothing to close."""

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        return ChatResponse.of(f"{prompt.contents} {prompt.options.temperature}")


class Words(Plain):
    """A model that streams bare text."""

    async def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        for word in ("one ", "", "two"):
            await runtime.sleep(0)
            yield word


@pytest.mark.parametrize("prompt", ["Hi", UserMessage("Hi"), [UserMessage("Hi")], Prompt("Hi")])
def test_a_model_takes_prompts_in_every_form(prompt: Any) -> None:
    """A text, a message, messages or a prompt are all the same to it."""

    async def main() -> ChatResponse:
        return await Plain().acall(prompt)

    assert Plain().call(prompt).text == "Hi None"
    assert asyncio.run(main()).text == "Hi None"


def test_the_models_options_hold_where_the_prompt_sets_none() -> None:
    """A model's own options lie under those of the prompt."""
    model = ScriptedModel("ok", "ok", options=ChatOptions(temperature=0.5, top_p=0.1))
    model.call("Hi")
    model.call(Prompt("Hi", ChatOptions(temperature=0.9)))

    used = [(p.options.temperature, p.options.top_p) for p in model.prompts]
    assert used == [(0.5, 0.1), (0.9, 0.1)]


def test_a_model_that_cannot_stream_has_one_chunk() -> None:
    """Streaming such a model gives the whole answer at once."""
    assert [chunk.text for chunk in Plain().stream("Hi")] == ["Hi None"]


def test_bare_text_is_a_chunk() -> None:
    """A model may yield text instead of chunks; callers get chunks all the same."""

    async def main() -> list[str]:
        return [chunk.text async for chunk in Words().astream("Hi")]

    assert [chunk.text for chunk in Words().stream("Hi")] == ["one ", "", "two"]
    assert asyncio.run(main()) == ["one ", "", "two"]
    assert list(ChatClient.create(Words()).prompt("Hi").stream()) == ["one ", "two"]


def test_a_model_hands_tool_calls_back() -> None:
    """Running tools is not a model's business."""
    assert ScriptedModel(call("anything")).call("Hi").has_tool_calls()


def test_tools_by_name_need_a_client() -> None:
    """A model knows no resolver, and would answer without the tools; one that is there will do."""
    named = Prompt("Hi", ChatOptions(tool_names=["anything"]))
    model = ScriptedModel("ok", "ok", "ok")
    asks: list[Callable[[Prompt], object]] = [
        model.call,
        lambda prompt: asyncio.run(model.acall(prompt)),
        lambda prompt: list(model.stream(prompt)),
        model.astream,
    ]
    for ask in asks:
        with pytest.raises(UsageError, match=r"such as \['anything'\]; .*tool_callbacks="):
            ask(named)

    @tool
    def anything() -> None: ...

    model.call(named.mutate_options(tool_callbacks=tool_callbacks(anything)))
    assert len(model.prompts) == 1


def test_a_blank_prompt_is_refused() -> None:
    """Nothing is sent for a prompt that says nothing."""
    with pytest.raises(UsageError, match="blank"):
        Plain().call("  ")


def test_a_model_is_a_context_manager() -> None:
    """Both kinds of `with` close a model; one that opened nothing takes it lightly."""

    async def main() -> str:
        async with Plain() as model:
            return (await model.acall("Hi")).text

    with Plain() as model:
        assert model.name == "Plain"
    assert asyncio.run(main()) == "Hi None"


def test_a_script_that_is_too_short_says_so() -> None:
    """A test that asks more than it scripted learns which call that was."""
    model = ScriptedModel("only one")
    model.call("Hi")

    with pytest.raises(AssertionError, match=r"call 2, which asks UserMessage\('What now\?'\)"):
        model.call("What now?")


def test_a_script_can_be_a_function_or_fail() -> None:
    """Answers come from a function of the prompt, and may be errors."""
    echo = ScriptedModel(lambda prompt: prompt.contents.upper())

    assert echo.call("hi").text == "HI"
    with pytest.raises(LookupError):
        ScriptedModel(LookupError("gone")).call("Hi")


def test_a_scripted_stream_may_break_off(ask: Ask) -> None:
    """An error at the end of an answer comes after what stands before it."""
    seen: list[Any] = []

    async def watch(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        async def emit(event: Any) -> None:
            seen.append(event)

        return await call_next(request.mutate(runtime=request.runtime.with_emitter(emit)))

    model = ScriptedModel(["half an ", StreamInterruptedError("gone")], "whole", chunks=99)
    client = ChatClient.builder(model).default_advisors(watch).build()

    with pytest.raises(StreamInterruptedError, match="gone") as caught:
        ask(client.prompt("x"))
    assert seen == ([TextDelta("half an ")] if ask.streaming else [])
    assert (caught.value.partial is not None) is ask.streaming
    assert model.unused == 1


def test_a_script_that_is_too_long_can_be_told() -> None:
    """A test asserts that everything it scripted was asked for."""
    model = ScriptedModel("a", "b")

    model.call("x")
    assert model.unused == 1
    model.call("y")
    assert model.unused == 0
    assert ScriptedModel(lambda _: "x").unused == 0


def test_arguments_of_a_scripted_call_may_be_a_mapping() -> None:
    """What is easier to write is written as JSON; what a model would write stays as it is."""
    assert call("w", {"city": "R"}).arguments == '{"city":"R"}'
    assert call("w", '{"city": ').arguments == '{"city": '


@pytest.mark.parametrize("wrong", [None, AssistantMessage("Hi.")])
def test_a_model_that_gives_no_response_is_told(ask: Ask, wrong: Any) -> None:
    """A forgotten `return`, a bare message: the error says what it should have been."""

    class Slip(ChatModel):
        async def generate(self, prompt: Prompt, runtime: Runtime) -> Any:
            return wrong

    said = r"\(\) of Slip returns must be a ChatResponse, not .*ChatResponse\.of\(text\)"
    with pytest.raises(WrongTypeError, match=said):
        ask(ChatClient.create(Slip()).prompt("Hi"))


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_a_chunk_of_another_kind_is_told(mode: Mode) -> None:
    """A bare message in a stream: the error says what it should have been."""

    async def slip(self: Plain, prompt: Prompt, runtime: Runtime) -> Any:
        yield AssistantMessage("Hi.")

    model: ChatModel = type("Slip", (Plain,), {"generate_stream": slip})()
    with pytest.raises(WrongTypeError, match=r"of Slip yields must be a.* ChatResponse, not"):
        Ask(mode)(ChatClient.create(model).prompt("Hi"))


def test_a_model_written_as_a_plain_method_is_told(ask: Ask) -> None:
    """A forgotten `async` is named, instead of what Python says of it somewhere in the library."""

    class Slip(ChatModel):
        def generate(self, prompt: Prompt, runtime: Runtime) -> Any:
            return ChatResponse.of("Hi.")

    with pytest.raises(WrongTypeError, match=r"generate\(\) of Slip must .* `async def`"):
        ask(ChatClient.create(Slip()).prompt("Hi"))
    with pytest.raises(WrongTypeError, match=r"generate\(\) of Slip must .* `async def`"):
        Slip().call("Hi")


def not_async(self: Plain, prompt: Prompt, runtime: Runtime) -> Any:
    yield "Hi."


async def not_yielding(self: Plain, prompt: Prompt, runtime: Runtime) -> Any:
    return ["Hi."]


@pytest.mark.parametrize("mode", ["stream", "astream"])
@pytest.mark.parametrize("method", [not_async, not_yielding])
def test_a_stream_that_is_no_asynchronous_generator_is_told(mode: Mode, method: Any) -> None:
    """A forgotten `async` or `yield` is named."""
    model: ChatModel = type("Slip", (Plain,), {"generate_stream": method})()
    said = r"generate_stream\(\) of Slip must .* `async def`, and `yield`"
    with pytest.raises(WrongTypeError, match=said):
        Ask(mode)(ChatClient.create(model).prompt("Hi"))
    with pytest.raises(WrongTypeError, match=said):
        list(model.stream("Hi"))
