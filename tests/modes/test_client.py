"""The fluent client in all four modes: defaults, merging and accessors."""

import asyncio
import gc
import re
import threading
import warnings
from pathlib import Path
from typing import Any, cast

import pytest

from chatclient import (
    AssistantMessage,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ChatOptions,
    ChatResponse,
    Media,
    Next,
    Prompt,
    PromptTemplate,
    SystemMessage,
    UserMessage,
    tool,
)
from chatclient.advisors.tool_loop.advisor import ToolCallingAdvisor
from chatclient.chain.chain import AdvisorChain
from chatclient.chat.aggregator import MessageAggregator
from chatclient.chat.events import Done, RoundEnded, TextDelta
from chatclient.chat.messages import ProviderPart, Reasoning
from chatclient.chat.response import Generation
from chatclient.chat.tool import CONVERSATION_ID, ToolRequest
from chatclient.client.client import draw_chain
from chatclient.client.options import SystemRequest
from chatclient.client.request import ChatClientRequestSpec
from chatclient.errors import TemplateError, ToolDefinitionError, UsageError, WrongTypeError
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import (
    FunctionToolCallback,
    StaticToolCallbackResolver,
    ToolApproval,
    ToolCallback,
    ToolCallingManager,
    tool_callbacks,
)
from tests.support.paths import ROOT


@tool
def ping() -> str:
    """Return "pong"."""
    return "pong"


@tool
def echo(text: str) -> str:
    """Repeat a text."""
    return text


def asked(model: ScriptedModel) -> Prompt:
    """Return the one prompt that *model* was asked."""
    assert len(model.prompts) == 1
    return model.prompts[0]


def tool_names(prompt: Prompt) -> list[str]:
    return [callback.definition.name for callback in prompt.options.tool_callbacks or ()]


# --- asking ---


@pytest.mark.feature("client-create", "request-call", "answer-content")
def test_the_answer_is_the_models_text(ask: Ask) -> None:
    """The content is the text of the model in every mode."""
    result = ask(ChatClient.create(ScriptedModel("Hello there")).prompt("Hi"))

    assert result.text == "Hello there"
    assert result.response.chat_response.text == "Hello there"
    assert result.response.chat_response.metadata.model == "scripted"


@pytest.mark.feature(
    "answer-spec-call-twice", "answer-subscribing-twice-flux-fails", "advisor-chains-single-use"
)
def test_a_request_can_be_repeated(ask: Ask) -> None:
    """A request is a value: each call of it sends a new request to the model."""
    request = ChatClient.create(ScriptedModel("one", "two")).prompt("Hi")

    assert [ask(request).text, ask(request).text] == ["one", "two"]


@pytest.mark.feature(
    "client-builder",
    "client-prompt",
    "request-user",
    "request-messages",
    "prompt-order-system-text-messages",
)
def test_the_conversation_is_system_messages_user(ask: Ask) -> None:
    """The system text goes first, the user text last, messages in between."""
    model = ScriptedModel("ok")
    client = ChatClient.builder(model).default_system("Be brief.").build()
    ask(client.prompt().messages(UserMessage("a"), [AssistantMessage("b")]).user("c"))

    assert asked(model).messages == (
        SystemMessage("Be brief."),
        UserMessage("a"),
        AssistantMessage("b"),
        UserMessage("c"),
    )


@pytest.mark.feature(
    "answer-chat-response", "answer-chat-client-response", "answer-accessors-one-answer-second"
)
def test_an_answer_is_fetched_once() -> None:
    """All accessors of a call share one request."""
    model = ScriptedModel("only once")
    answer = ChatClient.create(model).prompt("Hi").call()

    assert answer.content() == answer.chat_response().text == "only once"
    assert answer.chat_client_response().chat_response is answer.chat_response()
    assert answer.tool_executions() == ()
    assert len(model.prompts) == 1


@pytest.mark.feature("answer-accessors-one-answer-second")
def test_an_awaited_answer_is_fetched_once() -> None:
    """All accessors of an asynchronous call share one request, also in parallel."""
    model = ScriptedModel("only once")

    async def main() -> list[Any]:
        answer = ChatClient.create(model).prompt("Hi").acall()
        texts = await asyncio.gather(answer.content(), answer.content())
        done = await answer
        return [*texts, done.content(), (await answer.chat_response()).text]

    assert asyncio.run(main()) == ["only once"] * 4
    assert len(model.prompts) == 1


@pytest.mark.feature("answer-accessors-one-answer-second")
def test_threads_that_share_an_answer_share_its_request() -> None:
    """Two threads asking one answer cause one request."""
    model = ScriptedModel("only once")
    answer = ChatClient.create(model).prompt("Hi").call()
    threads = [threading.Thread(target=answer.content) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(model.prompts) == 1


@pytest.mark.feature("answer-failed-answer")
def test_a_failed_answer_fails_again_without_asking_again() -> None:
    """After an error every accessor raises it; the model is not asked twice."""
    model = ScriptedModel(LookupError("broken"), "never")
    answer = ChatClient.create(model).prompt("Hi").call()
    for accessor in (answer.content, answer.chat_response):
        with pytest.raises(LookupError, match="broken"):
            accessor()

    async def main() -> None:
        failing = ChatClient.create(ScriptedModel(LookupError("a"), "never")).prompt("Hi").acall()
        for _ in range(2):
            with pytest.raises(LookupError):
                await failing

    asyncio.run(main())
    assert len(model.prompts) == 1


@pytest.mark.feature(
    "client-nothing-sent-before-accessor", "lc4j-tool-token-stream-cardinality-start"
)
@pytest.mark.parametrize("way", ["call", "acall", "stream", "astream"])
def test_a_request_that_is_never_sent_warns(way: str) -> None:
    """An answer without an accessor causes a warning, like a coroutine that was never awaited."""
    request = ChatClient.create(ScriptedModel("x")).prompt("Hi")

    async def forget() -> None:
        getattr(request, way)()
        gc.collect()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(forget())

    assert any("never asked" in str(warning.message) for warning in caught)


# --- streams ---


@pytest.mark.feature("request-stream", "answer-stream-content")
def test_a_stream_gives_the_text_in_pieces() -> None:
    """Iterating a stream gives the pieces as the model sends them."""
    client = ChatClient.create(ScriptedModel("Hello there", chunks=6))

    assert list(client.prompt("Hi").stream()) == ["Hello ", "there"]


@pytest.mark.feature("request-stream")
def test_an_async_stream_gives_the_text_in_pieces() -> None:
    """Iterating an asynchronous stream gives the pieces as the model sends them."""

    async def main() -> list[str]:
        client = ChatClient.create(ScriptedModel("Hello there", chunks=6))
        async with client.prompt("Hi").astream().content() as pieces:
            return [piece async for piece in pieces]

    assert asyncio.run(main()) == ["Hello ", "there"]


@pytest.mark.feature("answer-stream-chat-response", "stream-usage-bearing-chunks")
def test_a_stream_of_chat_responses_ends_with_the_costs() -> None:
    """The chunks join to the text; the last has usage, a finish reason and no text."""
    chunks = list(ChatClient.create(ScriptedModel("Hello")).prompt("Hi").stream().chat_response())

    assert "".join(chunk.text for chunk in chunks) == "Hello"
    assert (chunks[-1].text, chunks[-1].finish_reason) == ("", "stop")
    assert chunks[-1].usage.total_tokens == 15


def spelt(ask: Ask, request: ChatClientRequestSpec) -> tuple[ChatResponse, ChatResponse]:
    """Return what the chunks of a stream join to, and its response."""
    aggregator = MessageAggregator()
    if ask.blocking:
        blocking = request.stream()
        for chunk in blocking.chat_response():
            aggregator.add(chunk)
        return aggregator.response(), blocking.response.chat_response

    async def consume() -> ChatResponse:
        stream = request.astream()
        async for chunk in stream.chat_response():
            aggregator.add(chunk)
        return stream.response.chat_response

    response = asyncio.run(consume())
    return aggregator.response(), response


@pytest.mark.feature("answer-aggregate-stream-look-tool")
def test_a_stream_of_chat_responses_spells_the_response(ask: Ask) -> None:
    """The chunks join to the complete response: calls, media and signatures."""
    if not ask.streaming:
        pytest.skip("a call has no chunks")
    said = AssistantMessage(
        [
            Reasoning("Hm", signature="signed", provider="p"),
            "Let me see.",
            ProviderPart("p", {"type": "searched"}),
            Media("image/png", b"png"),
            call("echo", '{"text": "Rome"}'),
            call("echo", '{"text": "Oslo"}'),
        ],
        metadata={"noted": True},
    )
    two = ChatResponse((Generation(said, "tool_call"), Generation(AssistantMessage("B"), index=1)))
    client = ChatClient.builder(ScriptedModel(two)).default_tools(echo).tool_calling(False).build()
    joined, response = spelt(ask, client.prompt("Hi"))

    assert joined == response
    assert joined.has_tool_calls()


def test_the_answer_has_no_tool_calls(ask: Ask) -> None:
    """A turn that has ended requests no tools."""
    if not ask.streaming:
        pytest.skip("a call has no chunks")
    model = ScriptedModel(["Let me see. ", call("ping")], "Pong.")
    joined, _ = spelt(ask, ChatClient.builder(model).default_tools(ping).build().prompt("Hi"))

    assert joined.text == "Let me see. \n\nPong."
    assert not joined.has_tool_calls()


@pytest.mark.feature("answer-stream-chat-client-response")
def test_streamed_client_responses() -> None:
    """The last chunk has the context of the advisors."""

    async def note(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        return (await call_next(request)).mutate(context={"noted": True})

    client = ChatClient.builder(ScriptedModel("Hello")).default_advisors(note).build()
    chunks = list(client.prompt("Hi").stream().chat_client_response())

    assert "noted" not in chunks[0].context
    assert chunks[-1].context["noted"] is True


@pytest.mark.feature(
    "answer-typed-stream-events", "lc4j-partial-response", "lc4j-complete-response"
)
def test_the_events_of_a_plain_answer(ask: Ask) -> None:
    """Text, the end of the round, the end of the request, in this order."""
    if not ask.streaming:
        pytest.skip("a call has no events")
    events = ask(ChatClient.create(ScriptedModel("Hi!", chunks=9)).prompt("Hi")).events

    assert events[0] == TextDelta("Hi!")
    assert isinstance(events[1], RoundEnded)
    assert isinstance(events[2], Done)
    assert events[2].response.text == "Hi!"
    assert len(events) == 3


@pytest.mark.feature("refused-second-pass-over-one", "answer-subscribing-twice-flux-fails")
def test_a_stream_is_consumed_once() -> None:
    """A second pass over a stream raises an error that names the alternative."""
    stream = ChatClient.create(ScriptedModel("Hi")).prompt("Hi").stream()
    list(stream)

    with pytest.raises(UsageError, match="once"):
        list(stream)


@pytest.mark.feature("answer-whole-response-stream", "lc4j-complete-response")
def test_the_response_of_a_stream_is_known_at_its_end() -> None:
    """Reading the response before the stream has ended is an error."""
    stream = ChatClient.create(ScriptedModel("Hi")).prompt("Hi").stream()
    with pytest.raises(UsageError, match="not ended"):
        _ = stream.response
    list(stream)

    assert stream.response.chat_response.text == "Hi"


@pytest.mark.feature("advisor-answering-model-place")
def test_an_answer_made_by_an_advisor_is_streamed_too(ask: Ask) -> None:
    """When an advisor answers in the model's place, its text is streamed."""

    async def answer(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        return ChatClientResponse(ChatResponse.of("from the advisor"))

    model = ScriptedModel("never")
    client = ChatClient.builder(model).default_advisors(answer).build()

    assert ask(client.prompt("Hi")).text == "from the advisor"
    assert model.prompts == []


# --- texts and templates ---


@pytest.mark.feature("request-prompt-user-spec-text", "request-system-prompt-spec-params")
def test_params_make_a_text_a_template(ask: Ask) -> None:
    """System and user texts with params are rendered; defaults and request add up."""
    model = ScriptedModel("ok")
    client = (
        ChatClient.builder(model)
        .default_system("You work for {company}, in {mood} mood.", params={"company": "Acme"})
        .build()
    )
    request = (
        client.prompt().system(params={"mood": "good"}).user("Hi {name}", params={"name": "J"})
    )
    ask(request)

    texts = [message.text for message in asked(model).messages]
    assert texts == ["You work for Acme, in good mood.", "Hi J"]


@pytest.mark.feature("prompt-templates-rendered-when-params")
def test_a_text_without_params_is_sent_as_it_is(ask: Ask) -> None:
    """Braces in a plain text are only braces."""
    model = ScriptedModel("ok")
    ask(ChatClient.create(model).prompt('Explain {"json": {}} and {name}'))

    assert asked(model).contents == 'Explain {"json": {}} and {name}'


def test_params_that_came_out_empty_make_a_template_too(ask: Ask) -> None:
    """With empty params, missing values are reported, and escaped braces are unescaped."""
    model = ScriptedModel("ok")
    client = ChatClient.create(model)

    with pytest.raises(TemplateError, match="city"):
        ask(client.prompt().user("How is {city}?", params={}))
    ask(client.prompt().user(r"Write \{city}.", params={}))
    assert asked(model).contents == "Write {city}."


def test_a_computed_system_text_is_no_template(ask: Ask) -> None:
    """The params of the text that it replaces do not make it one."""
    model = ScriptedModel("ok")
    client = ChatClient.builder(model).default_system("For {who}.", params={"who": "you"}).build()
    ask(client.prompt("Hi").system(lambda: "Use {json}."))

    assert asked(model).system_message == SystemMessage("Use {json}.")


def test_a_text_in_place_of_a_template_is_none(ask: Ask) -> None:
    """A text without params is sent unchanged, although the default text is a template."""
    model = ScriptedModel("a", "b")
    client = (
        ChatClient.builder(model)
        .default_system("You work for {company}.", params={"company": "Acme"})
        .default_user("Greet {name}.", params={"name": "Bob"})
        .build()
    )
    ask(client.prompt("What is {name}?").system("Answer as {json}."))
    ask(client.prompt().user("Greet {name} and {other}.", params={"other": "Eve"}))

    assert [m.text for m in model.prompts[0].messages] == ["Answer as {json}.", "What is {name}?"]
    assert [m.text for m in model.prompts[1].messages] == [
        "You work for Acme.",
        "Greet Bob and Eve.",
    ]


def test_values_that_no_text_mentions_are_not_sent(ask: Ask) -> None:
    """Unused params and the tool context are not sent to the model."""
    model = ScriptedModel("Hi.")
    request = ChatClient.create(model).prompt().user("Hi, {name}", params={"name": "A", "b": "no"})

    ask(request.system("Be {how}.", params={"how": "kind", "c": "no"}).tool_context(d="no"))

    assert [message.text for message in model.prompts[0].messages] == ["Be kind.", "Hi, A"]


@pytest.mark.feature("refused-missing-template-variables")
def test_missing_template_values_are_listed(ask: Ask) -> None:
    """A template that lacks values is refused with all missing names, before anything is sent."""
    model = ScriptedModel("never")
    request = ChatClient.create(model).prompt().user("{a} {b} {c}", params={"b": 1})

    with pytest.raises(TemplateError, match="a, c") as caught:
        ask(request)
    assert caught.value.missing == ("a", "c")
    assert model.prompts == []


@pytest.mark.feature(
    "request-template-renderer",
    "builder-default-template-renderer",
    "merge-template-renderer-replaced",
)
def test_a_custom_renderer_fills_the_templates() -> None:
    """The template renderer can be set for the client and for the request."""
    model = ScriptedModel("ok", "ok")
    client = ChatClient.builder(model).default_template_renderer(lambda t, v: t % dict(v)).build()
    client.prompt().user("%(x)s", params={"x": 1}).call().content()
    request = client.prompt().template_renderer(lambda t, v: "fixed")
    request.user("%(x)s", params={"x": 1}).call().content()

    assert [prompt.contents for prompt in model.prompts] == ["1", "fixed"]


def test_a_renderer_has_to_return_a_text() -> None:
    """A renderer that returns None raises an error for all texts."""
    wrong: Any = lambda template, values: None  # noqa: E731
    builder = ChatClient.builder(ScriptedModel()).default_template_renderer(wrong)

    said = "what a template renderer returns must be a str, not None"
    with pytest.raises(WrongTypeError, match=said):
        builder.build().prompt().user("{x}", params={"x": 1}).call().content()
    with pytest.raises(WrongTypeError, match=said):
        builder.default_system("{x}", params={"x": 1}).build().prompt("Hi").call().content()
    with pytest.raises(WrongTypeError, match=said):
        PromptTemplate("{x}", renderer=wrong).render(x=1)


@pytest.mark.feature("refused-blank-prompt-user-system")
@pytest.mark.parametrize("blank", ["", "  \n"])
def test_a_blank_prompt_is_refused(blank: str) -> None:
    """Nothing is sent for a blank text, wherever it is given."""
    client = ChatClient.create(ScriptedModel("never"))

    for attempt in (
        lambda: client.prompt(blank),
        lambda: client.prompt().user(blank),
        lambda: client.prompt().system(blank),
        lambda: ChatClient.builder(client.model).default_system(blank),
    ):
        with pytest.raises(UsageError, match="blank"):
            attempt()


@pytest.mark.feature("refused-blank-prompt-user-system")
def test_a_text_that_comes_to_nothing_is_not_sent(ask: Ask) -> None:
    """A user template that renders to a blank text is refused.

    A blank system text is left out, and a message with media needs no text.
    """
    model = ScriptedModel("ok", "ok")
    request = ChatClient.create(model).prompt()
    for blank in (
        request.user("{text}", params={"text": ""}),
        request.system("Be brief.").user(" {text}", params={"text": "\n"}),
        request.messages(UserMessage("Hi"), AssistantMessage("Hello."), UserMessage(" ")),
    ):
        with pytest.raises(UsageError, match="the user's message is blank"):
            ask(blank)
    ask(request.system("{mood}", params={"mood": None}).user("Hi"))
    image = Media("image/png", b"1")
    ask(request.user("{text}", params={"text": ""}, media=image))

    assert [prompt.messages for prompt in model.prompts] == [
        (UserMessage("Hi"),),
        (UserMessage(media=image),),
    ]


@pytest.mark.feature("refused-nothing-send-all")
def test_a_prompt_with_nothing_to_send_is_refused(ask: Ask) -> None:
    """A request without text and messages is an error, not an empty call."""
    with pytest.raises(UsageError, match="nothing to send"):
        ask(ChatClient.create(ScriptedModel("never")).prompt())


@pytest.mark.feature(
    "request-prompt-user-spec-media", "merge-media-appended", "prompt-media-metadata-dropped-when"
)
def test_media_need_no_text(ask: Ask) -> None:
    """An image alone is a message; media of several calls add up."""
    model = ScriptedModel("A cat")
    one, two = Media("image/png", b"1"), Media("image/png", b"2")
    ask(ChatClient.create(model).prompt().user(media=one).user(media=[two]))

    assert asked(model).messages == (UserMessage(media=[one, two]),)


@pytest.mark.feature(
    "request-prompt-user-spec-metadata",
    "request-system-prompt-spec-params",
    "merge-metadata-merged",
)
def test_metadata_stays_with_its_message(ask: Ask) -> None:
    """Metadata of system and user texts is kept on the messages."""
    model = ScriptedModel("ok")
    client = ChatClient.builder(model).default_user("Hi", metadata={"u": 1}).build()
    ask(client.prompt().system("S", metadata={"s": 2}).user(metadata={"v": 3}))

    system, user = asked(model).messages
    assert (system.metadata, user.metadata) == ({"s": 2}, {"u": 1, "v": 3})


@pytest.mark.feature("builder-default-system", "builder-default-user", "merge-media-appended")
def test_default_texts(ask: Ask) -> None:
    """They have params, media and metadata, to which a request adds its own."""
    model = ScriptedModel("ok")
    photo, plan = (Media("image/png", f"https://example.org/{name}.png") for name in "ab")
    client = (
        ChatClient.builder(model)
        .default_system("Be {how}.", params={"how": "kind"}, metadata={"s": 1})
        .default_user("{what} {whose}", params={"what": "Ask"}, media=photo, metadata={"u": 1})
        .build()
    )
    ask(client.prompt().system(metadata={"t": 2}).user(params={"whose": "her"}, media=plan))

    system, user = asked(model).messages
    assert system == SystemMessage("Be kind.", {"s": 1, "t": 2})
    assert (user.text, user.metadata) == ("Ask her", {"u": 1})
    assert isinstance(user, UserMessage)
    assert user.media == (photo, plan)


@pytest.mark.feature(
    "merge-params-merged-later-key",
    "merge-metadata-merged",
    "merge-messages-appended",
    "merge-advisors-appended-params-merged",
)
def test_defaults_are_merged_by_key(ask: Ask) -> None:
    """Params, metadata and advisor params of a request take precedence; messages are added."""
    model = ScriptedModel("ok")
    client = (
        ChatClient.builder(model)
        .default_system("{a} {b}", params={"a": "1", "b": "1"}, metadata={"a": 1, "b": 1})
        .default_messages(UserMessage("first"))
        .default_advisor_params({"a": 1, "b": 1})
        .default_advisors(lambda request, call_next: call_next(request))
        .build()
    )
    request = client.prompt("x").system(params={"b": "2"}, metadata={"b": 2})
    result = ask(request.messages(UserMessage("second")).advisor_params({"b": 2}))

    system, *others = asked(model).messages
    assert system == SystemMessage("1 2", {"a": 1, "b": 2})
    assert [each.text for each in others] == ["first", "second", "x"]
    assert {"a": 1, "b": 2}.items() <= result.response.context.items()


@pytest.mark.feature(
    "client-prompt-string",
    "builder-default-user",
    "builder-no-public-default-messages",
    "merge-user-system-text-last",
)
def test_the_request_replaces_default_texts() -> None:
    """The last text set wins; default messages stay."""
    model = ScriptedModel("ok")
    client = (
        ChatClient.builder(model)
        .default_system("default")
        .default_user("default")
        .default_messages(UserMessage("earlier"))
        .build()
    )
    client.prompt("mine").system("mine too").call().content()

    assert [m.text for m in asked(model).messages] == ["mine too", "earlier", "mine"]


@pytest.mark.feature(
    "client-prompt-client-prompt-messages",
    "builder-default-options",
    "merge-options-replaced-wholesale",
    "prompt-model-options-customizer-top",
)
def test_a_prompt_object_brings_messages_and_options() -> None:
    """A `Prompt`'s options go over the client's defaults, field by field."""
    model = ScriptedModel("ok", options=ChatOptions(model="m", temperature=1.0))
    client = ChatClient.builder(model).default_options(top_p=0.5, max_tokens=7).build()
    client.prompt(Prompt("Hi", ChatOptions(max_tokens=9))).call().content()

    options = asked(model).options
    assert (options.model, options.temperature) == ("m", 1.0)
    assert (options.top_p, options.max_tokens) == (0.5, 9)
    assert asked(model).contents == "Hi"


@pytest.mark.feature("refused-options-no-such-name", "options-name-typed")
def test_unknown_options_are_refused() -> None:
    """An option that the model's provider does not have is refused immediately, by name."""
    client = ChatClient.create(ScriptedModel("never"))

    with pytest.raises(UsageError, match="'temprature'"):
        client.prompt("Hi").options(temprature=0.2)  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="'temprature'"):
        client.mutate().default_options(temprature=0.2)  # type: ignore[call-arg]


def test_options_are_given_by_name_or_as_options() -> None:
    """A mapping is refused with an error that shows the correct form."""
    values: Any = {"temperature": 0.2}
    client = ChatClient.create(ScriptedModel("never"))

    with pytest.raises(UsageError, match="given by name"):
        client.prompt("Hi").options(values)
    with pytest.raises(UsageError, match="given by name"):
        client.mutate().default_options(values)


def test_a_client_is_not_made_by_its_class() -> None:
    """Calling the class raises an error that names the factory."""
    model: Any = ScriptedModel("never")

    with pytest.raises(UsageError, match=r"ChatClient\.create\(model\)"):
        ChatClient(model)


@pytest.mark.feature("refused-null-foreign-elements-messages")
def test_messages_have_to_be_messages() -> None:
    """A text among messages is refused with an error that shows the correct form."""
    with pytest.raises(TypeError, match="UserMessage"):
        ChatClient.create(ScriptedModel("never")).prompt().messages(["text"])  # type: ignore[list-item]


# --- tools ---


@pytest.mark.feature("builder-default-tools-tool-callbacks", "prompt-tools-ignored-when-options")
def test_default_tools_are_offered(ask: Ask) -> None:
    """Default tools go with every request."""
    model = ScriptedModel("ok")
    ask(ChatClient.builder(model).default_tools(ping, echo).build().prompt("Hi"))

    assert tool_names(asked(model)) == ["ping", "echo"]


@pytest.mark.feature(
    "merge-tools-appended-defaults",
    "merge-taking-default-tools-away",
    "tool-options-builder-list-replaces-single",
    "lc4j-chat-request-parameters-override",
)
def test_tools_of_the_request_replace_the_defaults() -> None:
    """A request's tools replace the default tools unless it keeps them."""
    model = ScriptedModel("ok", "ok", "ok")
    client = ChatClient.builder(model).default_tools(ping).build()
    client.prompt("Hi").tools(echo).call().content()
    client.prompt("Hi").tools(echo, keep_defaults=True).call().content()
    client.prompt("Hi").tools().call().content()

    assert [tool_names(prompt) for prompt in model.prompts] == [["echo"], ["ping", "echo"], []]


def test_defaults_can_be_kept_whenever_tools_are_given() -> None:
    """Default tools can be kept although the request already has tools; each is offered once."""
    model = ScriptedModel("ok", "ok")
    client = ChatClient.builder(model).default_tools(ping).build()
    other = FunctionToolCallback(lambda: "x", name="other")
    client.prompt("Hi").tools(echo).tools(other, keep_defaults=True).call().content()
    request = client.prompt("Hi").tools(echo, keep_defaults=True)
    request.tools(other, keep_defaults=True).call().content()

    assert [tool_names(prompt) for prompt in model.prompts] == [["ping", "echo", "other"]] * 2


@pytest.mark.feature(
    "request-tools",
    "request-tool-callbacks-deprecated",
    "source-tool-callback-provider",
    "source-pojo-annotated-methods",
    "source-names",
    "tool-callback-provider",
    "tool-tool",
    "lc4j-tool-specifications-object-class",
)
def test_tools_come_in_every_form() -> None:
    """Functions, objects, callbacks, providers, names and collections of them are all tools."""

    class Toolbox:
        @tool
        def hammer(self) -> str:
            return "bang"

    class Provider:
        def tool_callbacks(self) -> list[ToolCallback]:
            return [FunctionToolCallback(lambda: "x", name="provided")]

    def plain() -> str:
        """A plain function."""
        return "plain"

    model = ScriptedModel("ok")
    resolver = StaticToolCallbackResolver(ping)
    client = ChatClient.builder(model).tool_callback_resolver(resolver).build()
    client.prompt("Hi").tools(plain, Toolbox(), [echo, (Provider(), "ping")]).call().content()

    assert tool_names(asked(model)) == ["plain", "hammer", "echo", "provided", "ping"]


@pytest.mark.feature("prompt-providers-asked-when-request")
def test_an_async_provider_is_called_in_every_mode(ask: Ask) -> None:
    """A provider of tools may be asynchronous; it is asked once per request."""
    asked_times = 0

    class Provider:
        async def tool_callbacks(self) -> list[ToolCallback]:
            nonlocal asked_times
            asked_times += 1
            await asyncio.sleep(0)
            return tool_callbacks(ping)

    model = ScriptedModel("ok", "ok")
    client = ChatClient.builder(model).default_tools(Provider()).build()
    ask(client.prompt("Hi"))
    ask(client.prompt("Hi"))

    assert asked_times == 2
    assert tool_names(model.prompts[1]) == ["ping"]


@pytest.mark.feature("tool-options-builder-list-replaces-single")
def test_tools_in_the_options_of_a_request_are_its_tools(ask: Ask) -> None:
    """Tools in the options of a request replace the default tools."""
    one, two = tool_callbacks(ping, echo)
    model = ScriptedModel(*["ok"] * 5)
    client = ChatClient.builder(model).default_tools(ping).default_options(tool_callbacks=[two])
    request = client.build().prompt("Hi")
    ask(request)
    ask(request.options(tool_callbacks=[two]))
    ask(request.options(tool_callbacks=[one]).options(tool_callbacks=[two]).options(top_k=1))
    ask(request.tools(ping).options(ChatOptions(tool_callbacks=(two,))))
    ask(request.options(tool_callbacks=[]))

    offered = [tool_names(prompt) for prompt in model.prompts]
    assert offered == [["ping"], ["echo"], ["echo"], ["ping", "echo"], []]


@pytest.mark.feature("request-tools-name")
def test_tool_names_in_the_options_of_a_request(ask: Ask) -> None:
    """They replace the default tools, as tools do."""
    model = ScriptedModel(*["ok"] * 6)
    client = ChatClient.builder(model).tool_callback_resolver(
        StaticToolCallbackResolver(ping, echo)
    )
    given = client.default_tools(echo).build().prompt("Hi")
    named = client.default_options(tool_names=["echo"]).build().prompt("Hi")
    ask(given.options(tool_names=["ping"]))
    ask(given.options(tool_names=["ping"]).options(tool_names=["echo"]).options(top_k=1))
    ask(named)
    ask(named.options(tool_names=["ping"]))
    ask(named.tools(ping))
    ask(named.tools(ping, keep_defaults=True))

    offered = [tool_names(prompt) for prompt in model.prompts]
    assert offered == [["ping"], ["echo"], ["echo"], ["ping"], ["ping"], ["echo", "ping"]]


@pytest.mark.feature("merge-taking-default-tools-away")
@pytest.mark.parametrize(
    "options",
    [ChatOptions(tool_callbacks=tool_callbacks(ping)), ChatOptions(tool_names=["ping"])],
)
def test_tools_in_default_options_can_be_taken_away(ask: Ask, options: ChatOptions) -> None:
    """A request without tools removes those of the default options."""
    model = ScriptedModel("ok", "ok")
    resolver = StaticToolCallbackResolver(ping)
    client = ChatClient.builder(model).tool_callback_resolver(resolver).default_options(options)
    ask(client.build().prompt("Hi"))
    ask(client.build().prompt("Hi").tools())

    assert [tool_names(prompt) for prompt in model.prompts] == [["ping"], []]


@pytest.mark.feature("builder-resolver-tool-names", "resolver-static-tool-callback-resolver")
def test_tool_names_in_options_are_resolved() -> None:
    """Tools named in the options are found by the client's resolver."""
    model = ScriptedModel("ok")
    resolver = StaticToolCallbackResolver(ping)
    client = ChatClient.builder(model).tool_callback_resolver(resolver).build()
    client.prompt("Hi").options(tool_names=["ping"]).call().content()

    assert tool_names(asked(model)) == ["ping"]


@pytest.mark.feature("refused-tool-names-unknown")
@pytest.mark.parametrize("with_resolver", [True, False])
def test_an_unknown_tool_name_is_refused(with_resolver: bool) -> None:
    """A name that no resolver knows is an error that contains the name."""
    builder = ChatClient.builder(ScriptedModel("never"))
    if with_resolver:
        builder = builder.tool_callback_resolver(StaticToolCallbackResolver(ping))

    with pytest.raises(ToolDefinitionError, match="'pong'"):
        builder.build().prompt("Hi").tools("pong").call().content()


@pytest.mark.feature(
    "request-tool-context", "builder-default-tool-context", "merge-tool-context-merged"
)
def test_tool_context_merges() -> None:
    """The request's tool context goes over the default one, key by key."""
    model = ScriptedModel("ok")
    client = ChatClient.builder(model).default_tool_context({"a": 1, "b": 1}).build()
    client.prompt("Hi").tool_context({"b": 2}).tool_context(c=3).call().content()

    assert asked(model).options.tool_context == {"a": 1, "b": 2, "c": 3}


@pytest.mark.feature("request-tool-context", "tool-options-tool-context")
def test_tool_context_in_the_options_of_a_request(ask: Ask) -> None:
    """It takes precedence over the client's; of several in one request, the last one wins."""
    model = ScriptedModel("ok", "ok", "ok", "ok")
    options = ChatOptions(tool_context={"a": "options", "b": "options"})
    client = ChatClient.builder(model).default_options(options).default_tool_context(a="default")
    request = client.build().prompt("Hi")
    of_request = ChatOptions(tool_context={"a": "request"})
    ask(request)
    ask(request.options(of_request))
    ask(request.tool_context(a="before").options(tool_context={"a": "request"}))
    ask(request.options(of_request).tool_context(a="after"))

    seen = [prompt.options.tool_context for prompt in model.prompts]
    assert [context["a"] for context in seen] == ["default", "request", "request", "after"]
    assert {context["b"] for context in seen} == {"options"}


# --- immutability ---


@pytest.mark.feature("client-immutable-facade-over-default")
def test_a_half_built_request_can_be_shared() -> None:
    """Each fluent method returns a new request; the one before it stays as it was."""
    model = ScriptedModel("ok", "ok")
    base = ChatClient.create(model).prompt().system("Be brief.")
    base.user("one").call().content()
    base.user("two").call().content()

    assert [prompt.contents for prompt in model.prompts] == ["Be brief.\none", "Be brief.\ntwo"]


@pytest.mark.feature("client-immutable-facade-over-default", "builder-clone", "builder-build")
def test_a_client_never_changes_with_its_builder() -> None:
    """Building more on a builder leaves built clients alone."""
    model = ScriptedModel("ok", "ok")
    builder = ChatClient.builder(model).default_system("first")
    client = builder.build()
    other = builder.clone().default_system("second").build()
    client.prompt("Hi").call().content()
    other.prompt("Hi").call().content()

    assert [prompt.messages[0].text for prompt in model.prompts] == ["first", "second"]


@pytest.mark.feature(
    "client-mutate-client", "builder-default-advisors", "builder-chat-client-builder-customizer"
)
def test_mutate_copies_everything() -> None:
    """A mutated client has all that the original has, and the original stays as it was."""
    seen: list[Any] = []

    async def note(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        seen.append(request.context.get("key"))
        return await call_next(request)

    async def other(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        return await call_next(request)

    model = ScriptedModel("ok", "ok")
    client = (
        ChatClient.builder(model)
        .default_system("S {x}", params={"x": 1})
        .default_tools(ping)
        .default_tool_context({"t": 1})
        .default_advisor_params({"key": "value"})
        .default_advisors(other)
        .default_options(temperature=0.1)
        .build()
    )
    mutated = client.mutate().default_advisors(note).default_options(temperature=0.9).build()
    mutated.prompt("Hi").call().content()
    client.prompt("Hi").call().content()

    changed, original = model.prompts
    assert seen == ["value"]
    assert changed.messages[0].text == "S 1"
    assert tool_names(changed) == ["ping"]
    assert changed.options.tool_context == {"t": 1}
    assert (changed.options.temperature, original.options.temperature) == (0.9, 0.1)


@pytest.mark.feature("request-mutate-request")
def test_mutating_a_request_makes_its_settings_defaults() -> None:
    """A request can become a client; its own tools are the default tools there."""
    model = ScriptedModel("ok")
    request = ChatClient.builder(model).default_tools(ping).build().prompt("Hi").tools(echo)
    request.mutate().build().prompt().call().content()

    assert tool_names(asked(model)) == ["echo"]
    assert asked(model).contents == "Hi"


# --- lifetime and text ---


@pytest.mark.feature("client-closing-connections")
def test_a_client_closes_its_model() -> None:
    """Leaving a client's `with` block closes the model."""
    closed: list[str] = []

    class Closing(ScriptedModel):
        def close(self) -> None:
            closed.append("close")

    with ChatClient.create(Closing("ok")) as client:
        client.prompt("Hi").call().content()

    async def main() -> None:
        async with ChatClient.create(Closing("ok")) as client:
            await client.prompt("Hi").acall()

    asyncio.run(main())
    assert closed == ["close", "close"]


def test_requests_share_the_chain_of_their_client(ask: Ask) -> None:
    """It is built with the client, and once more for entities, but not for a conversation's id."""
    built: list[object] = []

    class Placed:
        def before_model(self, model: object) -> "Placed":
            built.append(model)
            return self

        async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
            return await call_next(request)

    client = ChatClient.builder(ScriptedModel(lambda _: "1")).default_advisors(Placed()).build()
    for number in range(3):
        request = client.prompt("Hi").conversation(str(number)).advisor_params(key=number)
        ask(request)
        request.call().entity(int)

    assert len(built) == 2


@pytest.mark.feature(
    "client-looking-chain",
    "advisor-get-name",
    "advisor-highest-precedence-lowest",
    "advisor-order-tool-loop-highest",
    "advisor-default-order-0-inside",
    "loop-registered-automatically-always",
)
def test_print_shows_the_chain_in_order() -> None:
    """`print(client)` shows what runs once and what runs in every round."""

    async def outer(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        return await call_next(request)

    class Inner:
        order = 5
        name = "my logger"

        async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
            return await call_next(request)

    outer.order = -(2**31) + 1  # type: ignore[attr-defined]
    model = ScriptedModel("ok", options=ChatOptions(model="gpt-x"))
    client = ChatClient.builder(model).default_advisors(Inner(), outer).build()

    assert str(client).splitlines() == [
        "ChatClient",
        "→ outer (order -2147483647)",
        "→ ToolCallingAdvisor (order -2147483348): what follows runs once per round",
        "    → my logger (order 5)",
        "    → gpt-x (ScriptedModel)",
    ]
    assert repr(client) == "ChatClient(gpt-x)"


@pytest.mark.feature("refused-blank-conversation-id")
@pytest.mark.parametrize("nothing", [" ", "", None, 7])
def test_a_conversation_needs_an_id(nothing: Any) -> None:
    """A conversation id that is blank, or no text, is refused."""
    with pytest.raises(UsageError, match="conversation id"):
        ChatClient.create(ScriptedModel("never")).prompt("Hi").conversation(nothing)


@pytest.mark.parametrize(
    "media", ["picture.png", Path("picture.png"), b"1", None, [Path("picture.png")], [b"1"]]
)
def test_media_are_media(media: Any) -> None:
    """A path or a text in place of a medium is refused before anything is sent."""
    request = ChatClient.create(ScriptedModel("never")).prompt()
    said = repr(media[0] if isinstance(media, list) else media)
    with pytest.raises(UsageError, match=re.escape(f"{said} is not a Media; make one")):
        request.user("What is this?", media=media)


@pytest.mark.parametrize("what", ["params", "metadata"])
def test_params_and_metadata_are_mappings(what: str) -> None:
    """Anything else is refused by name, for system and user texts alike."""
    request = ChatClient.create(ScriptedModel("never")).prompt()
    wrong: Any = {what: ["tier"]}
    for method in (request.user, request.system):
        with pytest.raises(TypeError, match=f"{what} must be a Mapping, not"):
            method("Hello", **wrong)


@pytest.mark.parametrize(("tools", "told"), [((), "there are no tools"), ((ping,), "are ping")])
def test_a_tool_that_must_be_called_is_offered(ask: Ask, tools: Any, told: str) -> None:
    """A name that is none of the request's tools is refused, and nothing is sent."""
    model = ScriptedModel("never")
    request = ChatClient.create(model).prompt("Hi").tools(*tools).options(tool_choice="pong")
    with pytest.raises(UsageError, match=f"not 'pong'; .*{told}"):
        ask(request)
    assert model.prompts == []


def test_a_tool_that_is_offered_may_have_to_be_called(ask: Ask) -> None:
    """A tool choice may be the name of a tool or one of the three modes."""
    for choice in ("ping", "auto", "none", "required"):
        model = ScriptedModel("pong")
        ask(ChatClient.create(model).prompt("Hi").tools(ping).options(tool_choice=choice))
        assert model.prompts[0].options.tool_choice == choice


def test_a_deadline_lies_ahead() -> None:
    """A deadline that has passed is refused; one that has not reaches the model."""
    seen: list[float] = []

    class Watching(ScriptedModel):
        async def generate(self, prompt: Prompt, runtime: Any) -> ChatResponse:
            seen.append(runtime.remaining())
            return await super().generate(prompt, runtime)

    client = ChatClient.create(Watching("ok"))
    with pytest.raises(UsageError, match="deadline"):
        client.prompt("Hi").deadline(0)
    client.prompt("Hi").deadline(5).call().content()

    assert 4 < seen[0] <= 5


@pytest.mark.feature("client-create")
def test_a_model_is_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A string names a provider and a model; an unknown provider is refused with the known ones."""
    monkeypatch.setenv("OPENAI_API_KEY", "test")

    assert ChatClient.create("openai:gpt-x").model.name == "gpt-x"
    with pytest.raises(UsageError, match="openai"):
        ChatClient.create("nobody:gpt-x")


@pytest.mark.feature("answer-asynchronous-answers-views")
def test_an_async_answer_has_all_accessors() -> None:
    """Each accessor of an asynchronous call can be awaited by itself."""

    @tool
    def nothing() -> None:
        """Do nothing."""

    async def main() -> tuple[Any, ...]:
        from chatclient.testing import call

        model = ScriptedModel(call("nothing"), "done")
        answer = ChatClient.builder(model).default_tools(nothing).build().prompt("Hi").acall()
        return (
            (await answer.tool_executions())[0].response.data,
            (await answer.chat_client_response()).chat_response.text,
            await answer.pending_turn(),
        )

    assert asyncio.run(main()) == ("Done", "done", None)


async def test_an_async_answer_has_the_turn_that_waits() -> None:
    """The pending turn can be decided and resumed."""
    manager = ToolCallingManager(interceptors=[ToolApproval()])
    model = ScriptedModel(call("ping"), "never")
    client = ChatClient.builder(model).default_tools(ping).tool_calling_manager(manager).build()
    turn = await client.prompt("Ping!").acall().pending_turn()

    assert turn is not None
    assert [each.name for each in turn.pending] == ["ping"]


@pytest.mark.feature("answer-asynchronous-answers-views")
def test_an_async_stream_has_all_views() -> None:
    """Text, chat responses, client responses: each a view of the same stream."""

    async def main() -> list[Any]:
        client = ChatClient.create(ScriptedModel("ab", "ab", "ab", chunks=1))
        texts = [piece async for piece in client.prompt("Hi").astream()]
        chunks = [c.text async for c in client.prompt("Hi").astream().chat_response()]
        stream = client.prompt("Hi").astream()
        whole = [r.chat_response.text async for r in stream.chat_client_response()]
        assert stream.pending_turn() is None
        return [texts, chunks, whole, stream.tool_executions()]

    assert asyncio.run(main()) == [["a", "b"], ["a", "b", ""], ["a", "b", ""], ()]


def test_an_async_stream_closed_early_gives_nothing_more() -> None:
    """After closing, the iterator is exhausted."""

    async def main() -> list[str]:
        pieces = ChatClient.create(ScriptedModel("abc", chunks=1)).prompt("Hi").astream().content()
        await anext(pieces)
        await pieces.aclose()
        return [piece async for piece in pieces]

    assert asyncio.run(main()) == []


@pytest.mark.feature("answer-reasoning-stream", "lc4j-partial-thinking")
def test_reasoning_is_streamed_apart_from_the_text() -> None:
    """Reasoning has separate events and chunks; it is never part of the text."""
    from chatclient.chat.events import ReasoningDelta
    from chatclient.chat.messages import Reasoning

    message = AssistantMessage("42", reasoning=[Reasoning("six times seven")])
    client = ChatClient.create(ScriptedModel(message, message, chunks=9))
    events = list(client.prompt("Hi").stream().events())
    chunks = list(client.prompt("Hi").stream().chat_response())

    assert events[:2] == [ReasoningDelta("six times seven"), TextDelta("42")]
    assert chunks[0].generations[0].output.reasoning == (Reasoning("six times seven"),)
    assert "".join(chunk.text for chunk in chunks) == "42"


@pytest.mark.feature("request-options", "merge-options-replaced-wholesale")
def test_options_can_be_given_as_an_object() -> None:
    """Options of the provider's own kind, or common ones, go over those set before."""
    model = ScriptedModel("ok", options=ChatOptions(model="m"))
    request = ChatClient.create(model).prompt("Hi").options(ChatOptions(top_p=0.3), seed=7)
    request.options(top_p=0.4).call().content()

    options = asked(model).options
    assert (options.model, options.top_p, options.seed) == ("m", 0.4, 7)


@pytest.mark.feature("client-prompt-messages")
def test_messages_alone_are_a_prompt() -> None:
    """A prompt can consist of one message or of a list of messages."""
    model = ScriptedModel("ok", "ok")
    client = ChatClient.create(model)
    client.prompt([UserMessage("a"), UserMessage("b")]).call().content()
    client.prompt(UserMessage("c")).call().content()

    assert [prompt.contents for prompt in model.prompts] == ["a\nb", "c"]


def test_a_chain_is_drawn_from_the_client() -> None:
    """The picture in the documentation is what the client of the page draws."""
    from chatclient.advisors import SimpleLoggerAdvisor
    from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor
    from chatclient.memory import MessageWindowChatMemory

    memory = MessageChatMemoryAdvisor(MessageWindowChatMemory())
    drawn = (
        ChatClient.builder("local")
        .default_advisors(memory, SimpleLoggerAdvisor())
        .build()
        .diagram()
    )
    page = ROOT / "docs" / "advisors.md"

    assert f"```text\n{drawn}\n```" in page.read_text(encoding="utf-8")


def test_a_chain_without_a_loop_is_drawn_without_a_box() -> None:
    """Where no tool is run there are no rounds."""

    async def passing(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        return await call_next(request)

    chain = AdvisorChain([passing], ScriptedModel())
    assert draw_chain(chain, None, rounds=True).splitlines()[1:] == [
        '    client(["ChatClient"])',
        '    advisor0["passing"]',
        "    client --> advisor0",
        '    model[("ScriptedModel")]',
        "    advisor0 --> model",
    ]


def test_chain_is_drawn_without_control_characters() -> None:
    """Names may be from outside, and drawings are printed."""

    async def passing(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        return await call_next(request)

    passing.__name__ = passing.__qualname__ = "a\x1b]52;c;aGk=\x07"
    drawn = draw_chain(AdvisorChain([passing], ScriptedModel()), None, rounds=False)

    assert '["a\\x1b]52;c;aGk=\\x07"]' in drawn


@pytest.mark.parametrize("loop", [(), (ToolCallingAdvisor(),)])
def test_a_client_that_runs_no_tools_draws_none(loop: tuple[ToolCallingAdvisor, ...]) -> None:
    """A loop that returns calls to the caller is drawn like any other advisor."""
    builder = ChatClient.builder(ScriptedModel()).default_advisors(*loop)
    silent = builder.tool_calling(False).build()
    told = builder.default_options(internal_tool_execution_enabled=False).build()

    for client in (silent, told):
        assert "tools" not in client.diagram()
        assert "subgraph" not in client.diagram()
        assert "once per round" not in str(client)
    assert "tools" in builder.build().diagram()


@pytest.mark.feature("builder-system-text-each-request", "service-system-message-provider")
def test_a_system_text_is_written_for_each_request(ask: Ask) -> None:
    """A plain or asynchronous function writes the system text for each request."""
    seen: list[SystemRequest] = []

    def plain(request: SystemRequest) -> str:
        seen.append(request)
        return f"Number {len(seen)} for {request.conversation_id}."

    async def later() -> str:
        await asyncio.sleep(0)
        return "Be {how}."

    model = ScriptedModel(lambda _: "x")
    client = ChatClient.builder(model).default_system(plain).build()
    request = client.prompt("Hi").conversation("ada").tool_context(tenant="t")

    for expected in ("Number 1 for ada.", "Number 2 for ada."):
        ask(request)
        assert model.prompts[-1].messages == (SystemMessage(expected), UserMessage("Hi"))
    assert seen[0].user_message == UserMessage("Hi")
    assert seen[0].tool_context == {"tenant": "t"}
    assert seen[0].params[CONVERSATION_ID] == "ada"
    ask(request.system(later, params={"how": "kind"}))
    assert model.prompts[-1].system_message == SystemMessage("Be kind.")
    ask(request.system("Be brief."))
    assert model.prompts[-1].system_message == SystemMessage("Be brief.")
    ask(request.system("Be brief.").system(lambda: ""))
    assert model.prompts[-1].system_message is None


def test_the_tool_context_is_not_shown() -> None:
    """Neither `repr` of the settings nor the request for a system text contains it."""
    seen: list[str] = []

    def instructions(request: SystemRequest) -> str:
        seen.append(repr(request))
        return "Be brief."

    client = ChatClient.builder(ScriptedModel("x")).default_system(instructions).build()
    request = client.prompt("Hi").tool_context(token="s3cr3t")
    request.call().content()

    assert "Hi" in seen[0]
    assert "Hi" in repr(request.settings)
    assert "s3cr3t" not in seen[0] + repr(request.settings)


def test_parameters_with_a_value_of_their_own_keep_it(ask: Ask) -> None:
    """Parameters with defaults keep them in functions for the system text and in providers.

    Only one that is annotated with the request receives it.
    """
    given: list[object] = []

    class Provider:
        def tool_callbacks(self, verbose: bool = False) -> list[ToolCallback]:
            given.append(verbose)
            return []

        def hidden_tools(self, *requests: Any) -> list[str]:
            given.extend(map(type, requests))
            return []

    def write(request: SystemRequest | None = None) -> str:
        return f"For {request and request.conversation_id}."

    model = ScriptedModel("x", "x", "x")
    request = ChatClient.create(model).prompt("Hi").conversation("ada").tools(Provider())
    ask(request.system(lambda name="Rome": f"In {name}."))
    ask(request.system(write))
    ask(request.system(lambda *, name="Rome": f"In {name}."))

    texts = [prompt.messages[0].text for prompt in model.prompts]
    assert texts == ["In Rome.", "For ada.", "In Rome."]
    assert given == [False, ToolRequest] * 3


def test_a_resumed_turn_keeps_the_system_text_that_it_had() -> None:
    """The pending turn contains its system text, so that none is written again."""
    texts = iter(["first", "second"])
    model = ScriptedModel(call("ping"), "done")
    manager = ToolCallingManager(interceptors=[ToolApproval(needed=lambda _: True)])
    builder = ChatClient.builder(model).default_system(lambda: next(texts)).default_tools(ping)
    client = builder.tool_calling_manager(manager).build()

    turn = client.prompt("Hi").call().pending_turn()
    assert turn is not None
    client.resume(turn, "approve").call().content()

    system = [m.text for m in model.prompts[-1].messages if m.role == "system"]
    assert system == ["first"]


def test_a_resumed_turn_takes_no_new_messages(ask: Ask) -> None:
    """New messages for a resumed turn are refused before a tool runs.

    The error names `Steering`.
    """
    model = ScriptedModel(call("ping"), "done")
    manager = ToolCallingManager(interceptors=[ToolApproval(needed=lambda _: True)])
    builder = ChatClient.builder(model).default_user("Ping!").default_tools(ping)
    client = builder.tool_calling_manager(manager).build()
    turn = client.prompt().call().pending_turn()
    assert turn is not None
    resumed = client.resume(turn, "approve")

    more = [resumed.user("More."), resumed.user(media=Media("image/png", b"x"))]
    more += [resumed.system("Be brief."), resumed.system(lambda: "Be brief.")]
    for request in (*more, resumed.messages(UserMessage("More."))):
        with pytest.raises(UsageError, match=r"would ignore .* Steering"):
            ask(request)
    assert len(model.prompts) == 1
    assert ask(resumed).text == "done"


def test_a_turn_is_resumed_in_the_loop_only(ask: Ask) -> None:
    """A turn cannot be resumed without the tool loop, because the decisions would be lost."""
    model = ScriptedModel(call("ping"), "done")
    manager = ToolCallingManager(interceptors=[ToolApproval(needed=lambda _: True)])
    client = ChatClient.builder(model).default_tools(ping).tool_calling_manager(manager).build()
    turn = client.prompt("Ping!").call().pending_turn()
    assert turn is not None
    resumed = client.resume(turn, "approve")

    off = resumed.options(internal_tool_execution_enabled=False)
    for request in (resumed.tool_calling(False), off):
        with pytest.raises(UsageError, match="resumed in the tool loop, and this request has none"):
            ask(request)
    assert len(model.prompts) == 1
    assert ask(resumed).text == "done"


def test_a_function_has_to_return_a_text(ask: Ask) -> None:
    """A function for the system text that returns None is named in the error."""

    def forgetful() -> Any:
        return None

    client = ChatClient.builder(ScriptedModel()).default_system(forgetful).build()

    with pytest.raises(UsageError, match="forgetful must return the system text"):
        ask(client.prompt("Hi"))


@pytest.mark.feature("request-user-system")
@pytest.mark.parametrize(
    ("given", "told"),
    [
        (PromptTemplate("Hi {name}"), r"template\.render"),
        (Path("system.txt"), r"read_text\(\)"),
        (3, "3 is not a text"),
        (UserMessage("Hi"), "is not a text"),
    ],
)
def test_wrong_texts_are_refused_with_a_hint(given: Any, told: str) -> None:
    """A value that is not a text is refused with an error that shows the correct form."""
    request = ChatClient.create(ScriptedModel()).prompt()

    with pytest.raises(UsageError, match=told):
        request.user(given)
    with pytest.raises(UsageError, match=told):
        request.system(given)


def test_wrong_prompts_are_refused_with_a_hint() -> None:
    """A template or a path as a prompt is refused with an error that shows the correct form."""
    client = ChatClient.create(ScriptedModel())
    template: Any = PromptTemplate("Hi {name}")
    path: Any = Path("system.txt")

    with pytest.raises(UsageError, match=r"template\.render"):
        client.prompt(template)
    with pytest.raises(UsageError, match=r"read_text\(\)"):
        client.prompt(path)
    with pytest.raises(TypeError, match="expected messages, got 3"):
        client.prompt().messages(cast("Any", 3))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, (0.7, 1, 9)),
        ({"temperature": None}, (None, 1, 9)),
        ({"max_tokens": None, "seed": 2}, (0.7, 2, None)),
    ],
)
def test_inherited_option_is_unset(ask: Ask, values: Any, expected: Any) -> None:
    """None drops the default of the client, and that of the model."""
    model = ScriptedModel("x", options=ChatOptions(temperature=0.5, max_tokens=9))
    client = ChatClient.builder(model).default_options(temperature=0.7, seed=1).build()
    ask(client.prompt("x").options(**values))

    options = model.prompts[0].options
    assert (options.temperature, options.seed, options.max_tokens) == expected
