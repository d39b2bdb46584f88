"""A model without a client, in all four modes."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

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
    tool,
)
from chatclient.chat.events import TextDelta
from chatclient.errors import StreamInterruptedError, UsageError, WrongTypeError
from chatclient.runtime.runtime import Runtime
from chatclient.testing import Ask, Mode, ScriptedModel, call
from chatclient.tools import tool_callbacks


class Plain(ChatModel):
    """A model without streaming that needs no closing."""

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        return ChatResponse.of(f"{prompt.contents} {prompt.options.temperature}")


class Words(Plain):
    """A model that streams strings."""

    async def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        for word in ("one ", "", "two"):
            await runtime.sleep(0)
            yield word


@pytest.mark.feature("model-call", "model-your-own")
@pytest.mark.parametrize("prompt", ["Hi", UserMessage("Hi"), [UserMessage("Hi")], Prompt("Hi")])
def test_prompt_forms(prompt: Any) -> None:
    """A string, a message, messages or a prompt are accepted."""

    async def main() -> ChatResponse:
        return await Plain().acall(prompt)

    assert Plain().call(prompt).text == "Hi None"
    assert asyncio.run(main()).text == "Hi None"


@pytest.mark.feature(
    "prompt-model-options-customizer-top",
    "model-get-options",
    "lc4j-default-request-parameters-model",
)
def test_model_options_are_defaults() -> None:
    """Options of the prompt override those of the model."""
    model = ScriptedModel("ok", "ok", options=ChatOptions(temperature=0.5, top_p=0.1))
    model.call("Hi")
    model.call(Prompt("Hi", ChatOptions(temperature=0.9)))

    used = [(p.options.temperature, p.options.top_p) for p in model.prompts]
    assert used == [(0.5, 0.1), (0.9, 0.1)]


@pytest.mark.feature("model-stream-unsupported-default")
def test_stream_without_streaming_support() -> None:
    """Streaming such a model yields the complete answer as one chunk."""
    assert [chunk.text for chunk in Plain().stream("Hi")] == ["Hi None"]


@pytest.mark.feature("model-your-own")
def test_string_chunks() -> None:
    """A model may yield strings; callers receive chunks."""

    async def main() -> list[str]:
        return [chunk.text async for chunk in Words().astream("Hi")]

    assert [chunk.text for chunk in Words().stream("Hi")] == ["one ", "", "two"]
    assert asyncio.run(main()) == ["one ", "", "two"]
    assert list(ChatClient.create(Words()).prompt("Hi").stream()) == ["one ", "two"]


@pytest.mark.feature("pattern-model-called-directly-returns")
def test_tool_calls_are_returned() -> None:
    """A model returns tool calls without running them."""
    assert ScriptedModel(call("anything")).call("Hi").has_tool_calls()


@pytest.mark.feature("pattern-model-called-directly-returns")
def test_tool_names_require_a_resolver() -> None:
    """A model rejects tool names unless it has a resolver."""
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


def test_blank_prompt() -> None:
    """A blank prompt raises before a request is sent."""
    with pytest.raises(UsageError, match="blank"):
        Plain().call("  ")


def test_context_managers() -> None:
    """Both kinds of `with` close a model, also one without resources."""

    async def main() -> str:
        async with Plain() as model:
            return (await model.acall("Hi")).text

    with Plain() as model:
        assert model.name == "Plain"
    assert asyncio.run(main()) == "Hi None"


@pytest.mark.feature("model-tests")
def test_exhausted_script() -> None:
    """The error names the call for which the script has no answer."""
    model = ScriptedModel("only one")
    model.call("Hi")

    with pytest.raises(AssertionError, match=r"call 2, which ends with User.*What now"):
        model.call("What now?")


@pytest.mark.feature("model-tests")
def test_script_functions_and_errors() -> None:
    """Answers may be functions of the prompt or errors."""
    echo = ScriptedModel(lambda prompt: prompt.contents.upper())

    assert echo.call("hi").text == "HI"
    with pytest.raises(LookupError):
        ScriptedModel(LookupError("gone")).call("Hi")


def test_script_error_in_stream(ask: Ask) -> None:
    """An error at the end of an answer is raised after its content."""
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


def test_unused_script_answers() -> None:
    """A test can assert that all scripted answers were used."""
    model = ScriptedModel("a", "b")

    model.call("x")
    assert model.unused == 1
    model.call("y")
    assert model.unused == 0
    assert ScriptedModel(lambda _: "x").unused == 0


def test_scripted_call_arguments() -> None:
    """A mapping is serialised to JSON; a string is kept."""
    assert call("w", {"city": "R"}).arguments == '{"city":"R"}'
    assert call("w", '{"city": ').arguments == '{"city": '


@pytest.mark.parametrize("wrong", [None, AssistantMessage("Hi.")])
def test_wrong_response_type(ask: Ask, wrong: Any) -> None:
    """The error names the expected type of response."""

    class Faulty(ChatModel):
        async def generate(self, prompt: Prompt, runtime: Runtime) -> Any:
            return wrong

    message = r"\(\) of Faulty returns must be a ChatResponse, not .*ChatResponse\.of\(text\)"
    with pytest.raises(WrongTypeError, match=message):
        ask(ChatClient.create(Faulty()).prompt("Hi"))


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_wrong_chunk_type(mode: Mode) -> None:
    """The error names the expected type of chunk."""

    async def yields_message(self: Plain, prompt: Prompt, runtime: Runtime) -> Any:
        yield AssistantMessage("Hi.")

    model: ChatModel = type("Faulty", (Plain,), {"generate_stream": yields_message})()
    with pytest.raises(WrongTypeError, match=r"of Faulty yields must be a.* ChatResponse, not"):
        Ask(mode)(ChatClient.create(model).prompt("Hi"))


def test_missing_async(ask: Ask) -> None:
    """A missing `async` is named in the error."""

    class Faulty(ChatModel):
        def generate(self, prompt: Prompt, runtime: Runtime) -> Any:
            return ChatResponse.of("Hi.")

    with pytest.raises(WrongTypeError, match=r"generate\(\) of Faulty must .* `async def`"):
        ask(ChatClient.create(Faulty()).prompt("Hi"))
    with pytest.raises(WrongTypeError, match=r"generate\(\) of Faulty must .* `async def`"):
        Faulty().call("Hi")


def not_async(self: Plain, prompt: Prompt, runtime: Runtime) -> Any:
    yield "Hi."


async def not_yielding(self: Plain, prompt: Prompt, runtime: Runtime) -> Any:
    return ["Hi."]


@pytest.mark.parametrize("mode", ["stream", "astream"])
@pytest.mark.parametrize("method", [not_async, not_yielding])
def test_stream_must_be_an_async_generator(mode: Mode, method: Any) -> None:
    """A missing `async` or `yield` is named in the error."""
    model: ChatModel = type("Faulty", (Plain,), {"generate_stream": method})()
    message = r"generate_stream\(\) of Faulty must .* `async def`, and `yield`"
    with pytest.raises(WrongTypeError, match=message):
        Ask(mode)(ChatClient.create(model).prompt("Hi"))
    with pytest.raises(WrongTypeError, match=message):
        list(model.stream("Hi"))
