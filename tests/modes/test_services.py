"""Declarative services: an interface that a client implements."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Protocol, TypeVar, assert_type

import pytest
from pydantic import BaseModel
from typing_extensions import TypeAliasType

from chatclient import (
    AssistantMessage,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ChatOptions,
    ChatResponse,
    Media,
    Next,
    ToolContext,
    ToolResponseMessage,
    UserMessage,
    tool,
)
from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor
from chatclient.chat.events import (
    ApprovalNeeded,
    Done,
    StreamEvent,
    TextDelta,
    ToolCallFinished,
    ToolCallStarted,
)
from chatclient.chat.tool import CONVERSATION_ID
from chatclient.errors import EntityError, UsageError
from chatclient.memory import ChatMemory, MessageWindowChatMemory, TokenWindowChatMemory
from chatclient.services import (
    MemoryId,
    Result,
    ai_service,
    system_message,
    user_message,
)
from chatclient.testing import Answer, Ask, ScriptedModel, call
from chatclient.tools import ToolApproval, ToolCallingManager, ToolMemoryId

T_co = TypeVar("T_co", covariant=True)
Model_co = TypeVar("Model_co", covariant=True, bound=BaseModel)

PNG = Media("image/png", b"\x89PNG")
WAV = Media("audio/wav", b"RIFF")


class City(BaseModel):
    name: str
    people: int = 0


ROME = '{"name": "Rome", "people": 3}'


class Assistant(Protocol):
    """All kinds of methods."""

    def chat(self, text: str) -> str:
        """Answer."""
        ...

    async def achat(self, text: str) -> str: ...

    def stream(self, text: str) -> Iterator[str]: ...

    def astream(self, text: str) -> AsyncIterator[str]: ...

    @system_message("You translate into {language}.")
    @user_message("Translate: {text}")
    def translate(self, text: str, language: str = "Latin") -> str: ...

    @system_message("Answer in {language}.")
    def answer_in(self, language: str, text: str) -> str: ...

    def city(self, text: str) -> City: ...

    async def acity(self, text: str) -> City: ...

    def cities(self, text: str) -> Iterator[City]: ...

    def acities(self, text: str) -> AsyncIterator[City]: ...

    def detailed(self, text: str) -> Result[City]: ...

    async def adetailed(self, text: str) -> Result[str]: ...

    def shout(self, text: str) -> str:
        """Need no model."""
        return self.chat(text).upper()


def service(*answers: Answer) -> tuple[Assistant, ScriptedModel]:
    model = ScriptedModel(*answers)
    return ai_service(Assistant, ChatClient.create(model)), model


def said(model: ScriptedModel, at: int = 0) -> list[tuple[str, str]]:
    """Return role and text of the messages that the model was sent in its call number *at*."""
    return [(message.role, message.text) for message in model.prompts[at].messages]


# --- what methods return ---


@pytest.mark.feature("service-services-create")
def test_a_text() -> None:
    """The only parameter is the user text, unchanged."""
    assistant, model = service("Hello.")

    assert assert_type(assistant.chat('Say {"hi"} to {name}'), str) == "Hello."
    assert said(model) == [("user", 'Say {"hi"} to {name}')]


async def test_a_text_asynchronously() -> None:
    """`async def` methods are awaited."""
    assistant, _ = service("Hello.")

    assert assert_type(await assistant.achat("Hi"), str) == "Hello."


@pytest.mark.feature("service-token-stream-flux")
def test_a_stream() -> None:
    """An iterator gives the text in pieces."""
    assistant, model = service("Hello there.")

    pieces = list(assert_type(assistant.stream("Hi"), Iterator[str]))

    assert len(pieces) > 1
    assert "".join(pieces) == "Hello there."
    assert said(model) == [("user", "Hi")]


async def test_an_asynchronous_stream() -> None:
    """An asynchronous iterator yields the text in pieces, too."""
    assistant, _ = service("Hello there.")

    pieces = [piece async for piece in assistant.astream("Hi")]

    assert len(pieces) > 1
    assert "".join(pieces) == "Hello there."


@pytest.mark.feature("service-return-type-string-pojo")
async def test_an_entity() -> None:
    """Any other type is requested, and parsed from the answer."""
    assistant, model = service(ROME, ROME)

    assert assert_type(assistant.city("Where?"), City) == City(name="Rome", people=3)
    assert await assistant.acity("Where?") == City(name="Rome", people=3)
    assert "people" in said(model)[0][1]


@pytest.mark.feature("service-token-stream-flux")
async def test_a_stream_of_partial_entities() -> None:
    """Values grow while the model writes; the last one is complete."""
    assistant, _ = service(ROME, ROME)

    assert list(assistant.cities("Where?"))[-1] == City(name="Rome", people=3)
    assert [c async for c in assistant.acities("Where?")][-1] == City(name="Rome", people=3)


@tool
def lookup() -> str:
    """Return where it is."""
    return "Rome"


async def _cites(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
    request.turn.record_sources(_cites, ["Britannica"])
    return await call_next(request)


@pytest.mark.feature("service-result-t")
async def test_a_result_has_the_details() -> None:
    """A `Result` has the usage of all rounds, executions, sources and finish reason."""
    model = ScriptedModel(call("lookup"), ROME, call("lookup"), "Rome.")
    client = ChatClient.builder(model).default_tools(lookup).default_advisors(_cites).build()
    assistant = ai_service(Assistant, client)

    result = assert_type(assistant.detailed("Where?"), Result[City])
    text = await assistant.adetailed("Where?")

    assert result.content == City(name="Rome", people=3)
    assert text.content == "Rome."
    for each in (result, text):
        assert each.usage.output_tokens == 10
        assert [e.response.data for e in each.tool_executions] == ["Rome"]
        assert each.sources == ("Britannica",)
        assert each.finish_reason == "stop"
        assert each.response.chat_response.text


@pytest.mark.feature("service-return-type-string-pojo")
def test_responses_and_nothing() -> None:
    """The return type may be a response, a message or None."""

    class Raw(Protocol):
        def message(self, text: str) -> AssistantMessage: ...
        def chat(self, text: str) -> ChatResponse: ...
        def client(self, text: str) -> ChatClientResponse: ...
        def nothing(self, text: str) -> None: ...
        def numbers(self, text: str) -> list[int]: ...
        def wrapped(self, text: str) -> Result: ...  # type: ignore[type-arg]

    raw = ai_service(Raw, ChatClient.create(ScriptedModel(*["a"] * 4, "[1, 2]", "b")))

    assert raw.message("x") == AssistantMessage("a")
    assert raw.chat("x").text == "a"
    assert raw.client("x").chat_response.text == "a"
    assert raw.nothing("x") is None  # type: ignore[func-returns-value]
    assert raw.numbers("x") == [1, 2]
    assert raw.wrapped("x").content == "b"


def test_an_empty_response_is_an_empty_message() -> None:
    """A response without generations is returned as an empty message."""

    class Raw(Protocol):
        def message(self, text: str) -> AssistantMessage: ...

    raw = ai_service(Raw, ChatClient.create(ScriptedModel(ChatResponse(()))))

    assert raw.message("x") == AssistantMessage()


@pytest.mark.feature("service-token-stream-flux")
async def test_streams_of_responses_and_events() -> None:
    """The iterator's declared type determines the items."""

    class Streams(Protocol):
        def events(self, text: str) -> Iterator[StreamEvent]: ...
        def both(self, text: str) -> Iterator[StreamEvent | object]: ...
        def anything(self, text: str) -> AsyncIterator[Any]: ...
        def chunks(self, text: str) -> Iterable[ChatResponse]: ...
        def client(self, text: str) -> Iterator[ChatClientResponse]: ...
        def bare(self, text: str) -> Iterator: ...  # type: ignore[type-arg]

    streams = ai_service(Streams, ChatClient.create(ScriptedModel(*["abc"] * 6, chunks=9)))

    assert next(iter(streams.events("x"))) == TextDelta("abc")
    assert next(iter(streams.both("x"))) == TextDelta("abc")
    assert [type(e) async for e in streams.anything("x")][-1] is Done
    assert [c.text for c in streams.chunks("x")] == ["abc", ""]
    assert [c.chat_response.text for c in streams.client("x")] == ["abc", ""]
    assert list(streams.bare("x")) == ["abc"]


async def test_events_of_a_service() -> None:
    """Tool calls and the end with its executions, documents and trail, in both streaming modes."""

    class Streams(Protocol):
        def events(self, text: str) -> Iterator[StreamEvent]: ...
        def aevents(self, text: str) -> AsyncIterator[StreamEvent]: ...

    @tool
    def clock() -> str:
        """Return the time."""
        return "12:00"

    model = ScriptedModel(call("clock"), "Noon.", call("clock"), "Noon.")
    streams = ai_service(Streams, ChatClient.builder(model).default_tools(clock).build())

    for events in (list(streams.events("x")), [e async for e in streams.aevents("x")]):
        kinds = [type(event) for event in events]
        done = events[-1]
        assert kinds.index(ToolCallStarted) < kinds.index(ToolCallFinished)
        assert isinstance(done, Done)
        assert [each.response.data for each in done.executions] == ["12:00"]
        assert (done.response.text, done.documents) == ("Noon.", ())
        assert done.trail.rounds


# --- texts and parameters ---


@pytest.mark.feature("service-user-message-method", "service-v")
def test_parameters_fill_the_templates() -> None:
    """They are passed by position, by name or by default; values are never rendered."""
    assistant, model = service("a", "b")

    assistant.translate("Hello {language}", "German")
    assistant.translate(text="Hello")

    assert said(model) == [
        ("system", "You translate into German."),
        ("user", "Translate: Hello {language}"),
    ]
    assert said(model, 1)[0] == ("system", "You translate into Latin.")


@pytest.mark.feature("service-user-message-parameter")
def test_the_unused_parameter_is_the_user_text() -> None:
    """The parameter that the system template does not use needs no annotation."""
    assistant, model = service("a")

    assistant.answer_in("Latin", "Who are {you}?")

    assert said(model) == [("system", "Answer in Latin."), ("user", "Who are {you}?")]


@pytest.mark.feature("service-system-message-method-interface")
def test_a_system_message_for_the_interface() -> None:
    """The method's system message overrides the interface's, which overrides the client's."""

    @system_message("interface")
    class Assistant(Protocol):
        def plain(self, text: str) -> str: ...

        @system_message("method")
        def own(self, text: str) -> str: ...

    class Other(Protocol):
        def plain(self, text: str) -> str: ...

    class Derived(Assistant, Protocol):
        def more(self, text: str) -> str: ...

    model = ScriptedModel(*["a"] * 4)
    client = ChatClient.builder(model).default_system("client {as} it is").build()
    ai_service(Assistant, client).plain("x")
    ai_service(Assistant, client).own("x")
    ai_service(Other, client).plain("x")
    ai_service(Derived, client).more("x")

    texts = [said(model, at)[0][1] for at in range(4)]
    assert texts == ["interface", "method", "client {as} it is", "interface"]


@pytest.mark.feature("service-system-message-provider")
def test_parameters_fill_the_clients_own_template() -> None:
    """Templates in the client's defaults may use the method's parameters."""

    class Assistant(Protocol):
        def chat(self, language: str, text: str) -> str: ...

    model = ScriptedModel("a")
    client = (
        ChatClient.builder(model)
        .default_system("For {company}, in {language}.", params={"company": "Acme"})
        .build()
    )

    ai_service(Assistant, client).chat("Latin", "Hi")

    assert said(model) == [("system", "For Acme, in Latin."), ("user", "Hi")]


def test_texts_are_templates_without_variables_too() -> None:
    """The client's params are rendered, and escaped braces are unescaped."""

    class Poet(Protocol):
        @system_message("Be {mood}.")
        @user_message(r"Write \{name}.")
        def write(self) -> str: ...

    model = ScriptedModel("x")
    builder = ChatClient.builder(model).default_system("Stay {mood}.", params={"mood": "kind"})
    ai_service(Poet, builder.build()).write()

    assert said(model) == [("system", "Be kind."), ("user", "Write {name}.")]


@pytest.mark.feature("service-resource")
def test_texts_from_files(tmp_path: Path) -> None:
    """The file of a text is read once, when the service is created."""
    file = tmp_path / "system.txt"

    class Assistant(Protocol):
        @system_message(file)
        @user_message("Hi {name}")
        def greet(self, name: str) -> str: ...

    client = ChatClient.create(model := ScriptedModel("a"))
    with pytest.raises(UsageError, match=r"Assistant\.greet .*cannot be read"):
        ai_service(Assistant, client)
    file.write_text("Be nice, ünter all circumstances.", encoding="utf-8")
    assistant = ai_service(Assistant, client)
    file.unlink()
    assistant.greet("Ann")

    assert said(model) == [("system", "Be nice, ünter all circumstances."), ("user", "Hi Ann")]


@pytest.mark.feature(
    "service-memory-id",
    "service-content-arguments",
    "service-chat-request-parameters-argument",
    "service-invocation-parameters-argument",
)
def test_everything_that_is_no_variable() -> None:
    """Conversation, user message, media, options and tool context are not template variables."""
    seen: list[ChatClientRequest] = []

    async def spy(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        seen.append(request)
        return await call_next(request)

    class Assistant(Protocol):
        @system_message("Be {tone}.")
        def chat(
            self,
            conversation: Annotated[int, MemoryId],
            tone: str,
            text: Annotated[str, UserMessage],
            image: Media | None,
            more: Sequence[Media] = (),
            options: ChatOptions | None = None,
            context: Annotated[Mapping[str, Any] | None, ToolContext] = None,
        ) -> str: ...

    client = ChatClient.builder(ScriptedModel("a", "b")).default_advisors(spy).build()
    assistant = ai_service(Assistant, client)
    assistant.chat(
        7, "kind", "Hi", PNG, [WAV], ChatOptions(temperature=0.5), context={"tenant": "acme"}
    )
    assistant.chat(8, "kind", "Hi", None)

    first, second = seen
    assert first.context[CONVERSATION_ID] == "7"
    assert second.context[CONVERSATION_ID] == "8"
    message = first.prompt.messages[-1]
    assert isinstance(message, UserMessage)
    assert (message.text, message.media) == ("Hi", (PNG, WAV))
    assert first.prompt.options.temperature == 0.5
    assert first.prompt.options.tool_context == {"tenant": "acme"}
    assert second.prompt.messages[-1] == UserMessage("Hi")


Conversation = TypeAliasType("Conversation", Annotated[str, MemoryId])
Words = TypeAliasType("Words", Iterator[str])
Text = TypeAliasType("Text", str)


def test_parameters_and_results_may_go_by_another_name() -> None:
    """Type aliases, `Annotated` within a union, and a `ToolContext` are accepted."""
    seen: list[ChatClientRequest] = []

    async def spy(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        seen.append(request)
        return await call_next(request)

    class Assistant(Protocol):
        def chat(self, id: Conversation | None, text: str, context: ToolContext) -> Text: ...

        def stream(self, id: Annotated[str, ToolMemoryId] | None, text: str) -> Words: ...

        def explain(self, text: str) -> Result[Text]: ...

    model = ScriptedModel(*["a"] * 3)
    client = ChatClient.builder(model).default_advisors(spy).build()
    assistant = ai_service(Assistant, client)

    assert assistant.chat("c", "x", ToolContext({"tenant": "acme"})) == "a"
    assert list(assistant.stream("d", "y")) == ["a"]
    assert assistant.explain("z").content == "a"
    assert [request.context.get(CONVERSATION_ID) for request in seen] == ["c", "d", None]
    assert seen[0].prompt.options.tool_context == {"tenant": "acme"}
    assert [said(model, at) for at in range(3)] == [[("user", text)] for text in "xyz"]


@pytest.mark.feature("service-content-arguments")
def test_a_user_message_is_taken_as_it_is() -> None:
    """A `UserMessage` is sent with its text, media and metadata."""

    class Assistant(Protocol):
        def chat(self, message: UserMessage) -> str: ...

    model = ScriptedModel("a")
    ai_service(Assistant, ChatClient.create(model)).chat(UserMessage("Hi", [PNG], {"id": 1}))

    [message] = model.prompts[0].messages
    assert message == UserMessage("Hi", [PNG], {"id": 1})
    assert message.metadata == {"id": 1}


def test_the_parts_of_a_user_message_stay_in_their_order() -> None:
    """The order of texts and images is kept.

    Other media are appended, and the client's text is replaced.
    """

    class Assistant(Protocol):
        def chat(self, image: Media | None, message: UserMessage) -> str: ...

    model = ScriptedModel("a", "b")
    client = ChatClient.builder(model).default_user("Hi").build()
    assistant, mixed = ai_service(Assistant, client), UserMessage(["Is ", PNG, " like ", PNG, "?"])
    assistant.chat(None, mixed)
    assistant.chat(PNG, mixed)

    assert model.prompts[0].messages == (mixed,)
    assert model.prompts[1].messages == (mixed, UserMessage(media=PNG))


def test_values_are_sent_as_json() -> None:
    """A parameter that is not a text is the user text as JSON."""

    @dataclass
    class Order:
        item: str
        count: int

    class Assistant(Protocol):
        def check(self, order: Order) -> str: ...

    model = ScriptedModel("a")
    ai_service(Assistant, ChatClient.create(model)).check(Order("tea", 2))

    assert said(model) == [("user", '{"item":"tea","count":2}')]


def test_media_alone_and_the_clients_text() -> None:
    """A method may send only media, or only the client's default text."""

    class Looks(Protocol):
        def look(self, image: Media) -> str: ...

    class Asks(Protocol):
        def ask(self) -> str: ...

    model = ScriptedModel("a", "b")
    ai_service(Looks, ChatClient.create(model)).look(PNG)
    ai_service(Asks, ChatClient.builder(model).default_user("How are you?").build()).ask()

    assert model.prompts[0].messages == (UserMessage("", [PNG]),)
    assert said(model, 1) == [("user", "How are you?")]


def test_arguments_are_those_of_the_signature() -> None:
    """Wrong arguments raise Python's `TypeError`, and nothing is sent."""
    assistant, model = service()

    with pytest.raises(TypeError, match="missing a required argument: 'text'"):
        assistant.chat()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        assistant.chat("x", mood="good")  # type: ignore[call-arg]

    assert model.prompts == []


# --- the object itself ---


@pytest.mark.feature("service-default-methods")
def test_methods_with_a_body_stay() -> None:
    """A method with a body may call the implemented ones."""
    assistant, _ = service("hello")

    assert assistant.shout("x") == "HELLO"


def test_a_service_looks_like_its_interface() -> None:
    """It has the interface's name, docstring and signatures; `repr` has the client."""
    assistant, _ = service()

    assert Assistant in type(assistant).__mro__
    assert type(assistant).__module__ == __name__
    assert assistant.chat.__doc__ == "Answer."
    assert assistant.chat.__name__ == "chat"
    assert repr(assistant) == "ai_service(Assistant, ChatClient(ScriptedModel))"


@pytest.mark.feature("service-services-create")
def test_an_abstract_class_does_as_well() -> None:
    """Abstract methods are implemented, and others are kept."""

    class Assistant(ABC):
        greeting = "Hi"

        @abstractmethod
        def chat(self, text: str) -> str:
            """Answer."""

        def twice(self, text: str) -> str:
            return self.chat(text) * 2

        @user_message("Greet {name}.")
        def greet(self, name: str) -> str:
            raise NotImplementedError

        @staticmethod
        def helper() -> int:
            return 1

    assistant = ai_service(Assistant, ChatClient.create(ScriptedModel("a", "b")))

    assert assistant.twice("x") == "aa"
    assert assistant.greet("Ann") == "b"
    assert (assistant.greeting, assistant.helper()) == ("Hi", 1)


@pytest.mark.feature("service-chat-memory-access-get")
async def test_a_service_gives_the_memory_of_its_client() -> None:
    """An attribute or a property of a memory type returns the client's memory."""

    class Talker(Protocol):
        memory: ChatMemory

        def chat(self, conversation: Annotated[str, MemoryId], text: str) -> str: ...

    class Remembering(ABC):
        name: str

        @property
        @abstractmethod
        def past(self) -> MessageWindowChatMemory: ...

        @abstractmethod
        def chat(self, conversation: Annotated[str, MemoryId], text: str) -> str: ...

    memory = MessageWindowChatMemory()
    builder = ChatClient.builder(ScriptedModel("Hello.", "Bye."))
    client = builder.default_advisors(MessageChatMemoryAdvisor(memory)).build()
    talker, remembering = ai_service(Talker, client), ai_service(Remembering, client)
    talker.chat("ada", "Hi")
    remembering.chat("bob", "Ciao")

    assert assert_type(talker.memory, ChatMemory) is remembering.past is memory
    assert [message.text for message in talker.memory.get("ada")] == ["Hi", "Hello."]
    talker.memory.clear("ada")
    await remembering.past.aclear("bob")
    assert talker.memory.get("ada") == talker.memory.get("bob") == []


class Reader:
    """An advisor that reads the memory of another one."""

    def __init__(self, memory: ChatMemory) -> None:
        self.memory = memory

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        return await call_next(request)


@pytest.mark.feature("service-chat-memory-access-get")
def test_the_memory_of_a_service() -> None:
    """The declared class selects among several memories; none or two matches are an error.

    The message names the alternatives.
    """

    class Loose(Protocol):
        memory: ChatMemory

        def chat(self, text: str) -> str: ...

    class Tokens(Protocol):
        memory: "TokenWindowChatMemory"

        def chat(self, text: str) -> str: ...

    long, short = TokenWindowChatMemory(max_tokens=10), MessageWindowChatMemory()
    builder = ChatClient.builder(ScriptedModel())
    both = builder.default_advisors(MessageChatMemoryAdvisor(each) for each in (long, short))

    assert ai_service(Tokens, both.build()).memory is long
    assert ai_service(Tokens, both.default_advisors(Reader(long)).build()).memory is long
    with pytest.raises(UsageError, match=r"^Loose.memory needs .* ChatMemory, .* has 2 of them"):
        ai_service(Loose, both.build())
    with pytest.raises(UsageError, match=r"^Loose.memory needs .* none; add one with"):
        ai_service(Loose, builder.build())


def test_services_of_one_interface_are_independent() -> None:
    """Each service has its client."""
    one, _ = service("1")
    two, _ = service("2")

    assert (one.chat("x"), two.chat("x")) == ("1", "2")


def test_a_generic_interface() -> None:
    """Methods of base classes are implemented, too."""

    class Chats(Protocol, Generic[T_co]):
        def chat(self, text: str) -> str: ...

    class Assistant(Chats[int], Protocol):
        def more(self, text: str) -> str: ...

    assistant = ai_service(Assistant, ChatClient.create(ScriptedModel("a", "b")))

    assert (assistant.chat("x"), assistant.more("x")) == ("a", "b")


Extracted = TypeVar("Extracted")


class Extractor(Protocol, Generic[Extracted]):
    @user_message("Extract it from {text}.")
    def extract(self, text: str) -> Extracted: ...

    @user_message("Extract all from {text}.")
    def extract_all(self, text: str) -> list[Extracted]: ...


class TripExtractor(Extractor["Trip"], Protocol):
    """An interface with a forward reference."""


class NestedExtractor(Extractor[list[int]], Protocol): ...


class Trip(BaseModel):
    city: str


def test_the_types_of_a_generic_interface() -> None:
    """A method returns the type that the interface gives its base class."""
    model = ScriptedModel('{"city": "Rome"}', '[{"city": "Rome"}]', "[1]", "[[1], [2]]", "3")
    client = ChatClient.create(model)
    trips, numbers = ai_service(TripExtractor, client), ai_service(NestedExtractor, client)

    assert trips.extract("x") == Trip(city="Rome")
    assert trips.extract_all("x") == [Trip(city="Rome")]
    assert numbers.extract("x") == [1]
    assert numbers.extract_all("x") == [[1], [2]]
    direct = ai_service(Extractor[int], client)
    assert direct.extract("x") == 3
    with pytest.raises(UsageError, match=r"returns .*Extracted, which is only a type variable"):
        ai_service(Extractor, client)  # type: ignore[type-abstract]


class Expert(Protocol):
    @tool(effect="read")
    @user_message("Tell me about {city}.")
    def tell(
        self, city: str, id: Annotated[str, MemoryId, ToolMemoryId], context: ToolContext
    ) -> str:
        """Tell about a city."""
        ...


@pytest.mark.feature("lc4j-tool-services-tools")
def test_a_service_is_a_tool_of_another_client(ask: Ask) -> None:
    """The model fills in the variables; conversation and tool context are the outer ones."""

    @tool(effect="read")
    def population(context: ToolContext) -> str:
        """Count the people."""
        return f"{context['tenant']}, {context.conversation_id}"

    inner = ScriptedModel(call("population"), "Rome is big.")
    expert = ai_service(Expert, ChatClient.builder(inner).default_tools(population).build())
    outer = ScriptedModel(call("tell", {"city": "Rome"}), "It is big.")
    client = ChatClient.builder(outer).default_tools(expert).build()
    result = ask(client.prompt("How big is Rome?").conversation("c").tool_context(tenant="acme"))

    assert [e.response.data for e in result.executions] == ["Rome is big."]
    [offered] = outer.prompts[0].options.tool_callbacks or []
    assert list(offered.definition.input_schema["properties"]) == ["city"]
    assert said(inner) == [("user", "Tell me about Rome.")]
    answer = inner.prompts[1].messages[-1]
    assert isinstance(answer, ToolResponseMessage)
    assert answer.responses[0].data == "acme, c"


# --- mistakes, all of which show when the service is made ---


class NoReturn(Protocol):
    def chat(self, text: str): ...  # type: ignore[no-untyped-def]  # noqa: ANN201


class Unresolved(Protocol):
    def chat(self, text: "Nowhere") -> str: ...  # type: ignore[name-defined]  # noqa: F821


class Variadic(Protocol):
    def chat(self, *texts: str) -> str: ...


class Missing(Protocol):
    @user_message("{greeting}, {nmae}")
    def chat(self, name: str) -> str: ...


class MissingInSystem(Protocol):
    @system_message("Be {tone}.")
    def chat(self, text: str) -> str: ...


class Unused(Protocol):
    @user_message("Hi {name}")
    def chat(self, name: str, language: str) -> str: ...


class Undecided(Protocol):
    def chat(self, first: str, second: str) -> str: ...


class Silent(Protocol):
    def chat(self) -> str: ...


class Both(Protocol):
    @user_message("Hi")
    def chat(self, text: Annotated[str, UserMessage]) -> str: ...


class TwoIds(Protocol):
    def chat(
        self, a: Annotated[str, MemoryId], b: Annotated[str, MemoryId()], text: str
    ) -> str: ...


class BareId(Protocol):
    def chat(self, conversation: MemoryId | None, text: str) -> str: ...


class IdInside(Protocol):
    def chat(self, ids: list[Annotated[str, MemoryId]]) -> str: ...


class IdOrNumber(Protocol):
    def chat(self, id: Annotated[str, MemoryId] | int, text: str) -> str: ...


class DefaultId(Protocol):
    def chat(self, text: str, id: str = MemoryId()) -> str: ...  # type: ignore[assignment]


class AnyModel(Protocol[Model_co]):
    def chat(self, text: str) -> Model_co: ...


class TwoOptions(Protocol):
    def chat(self, a: ChatOptions, b: ChatOptions, text: str) -> str: ...


class AwaitedStream(Protocol):
    async def chat(self, text: str) -> AsyncIterator[str]: ...


class SomeEvents(Protocol):
    def chat(self, text: str) -> Iterator[TextDelta | Done]: ...


class NoSchema(Protocol):
    def chat(self, text: str) -> asyncio.AbstractEventLoop: ...


class Blank(Protocol):
    @system_message(" ")
    def chat(self, text: str) -> str: ...


class Awaited(Protocol):
    def chat(self, text: str) -> Awaitable[str]: ...


class StreamedResult(Protocol):
    def chat(self, text: str) -> Iterator[Result[str]]: ...


class ResultOfStream(Protocol):
    def chat(self, text: str) -> Result[Iterator[str]]: ...


class Unbound(Protocol[T_co]):
    def chat(self, text: str) -> T_co: ...


class UnboundInside(Protocol[T_co]):
    def chat(self, text: str) -> Sequence[T_co]: ...


class Property(Protocol):
    @property
    def chat(self) -> str: ...


class Static(Protocol):
    @staticmethod
    def chat(text: str) -> str: ...


class Attribute(Protocol):
    chat: str


class UnresolvedAttribute(Protocol):
    chat: "Nowhere"  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.feature("service-errors-build-first-call")
@pytest.mark.parametrize(
    ("interface", "message"),
    [
        (NoReturn, "has no return annotation"),
        (Unresolved, "annotation that cannot be resolved .*Nowhere"),
        (Variadic, r"takes \*texts"),
        (Missing, "needs greeting, nmae; it has name"),
        (MissingInSystem, "needs tone; it has text"),
        (Unused, "does not use language"),
        (Undecided, "does not use first, second"),
        (Silent, "has no user message"),
        (Both, "a @user_message and a parameter"),
        (BareId, r"marks a type: write Annotated\[str, MemoryId\]"),
        (IdInside, "a MemoryId inside a type"),
        (IdOrNumber, "a MemoryId inside a type"),
        (DefaultId, "MemoryId as the default of id"),
        (AnyModel, "BaseModel has no fields"),
        (TwoIds, "several parameters for the memory id"),
        (TwoOptions, "several parameters for the options"),
        (AwaitedStream, "make it a plain `def`"),
        (SomeEvents, "returns only some types of events; .* StreamEvent"),
        (NoSchema, "AbstractEventLoop"),
        (Awaited, "returns an awaitable; make it `async def`"),
        (StreamedResult, "a Result and a stream in one; .* StreamEvent"),
        (ResultOfStream, "a Result and a stream in one; .* StreamEvent"),
        (Unbound, "T_co, which is only a type variable"),
        (UnboundInside, "T_co.*, which is only a type variable"),
        (Blank, "has a blank text"),
        (Property, "not a plain method"),
        (Static, "not a plain method"),
        (Attribute, "not a plain method"),
        (UnresolvedAttribute, "annotation that cannot be resolved .*Nowhere"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_mistakes_in_an_interface(interface: Any, message: str) -> None:
    """The error names the method when the service is created."""
    with pytest.raises(UsageError, match=f"^{interface.__name__}.chat .*{message}"):
        ai_service(interface, ChatClient.create(ScriptedModel()))


def test_mistakes_in_what_is_no_interface() -> None:
    """An instance, or a class without abstract methods, is refused."""

    class Empty(Protocol):
        memory: ChatMemory

        def done(self) -> str:
            return "done"

    memory = MessageChatMemoryAdvisor(MessageWindowChatMemory())
    client = ChatClient.builder(ScriptedModel()).default_advisors(memory).build()
    with pytest.raises(UsageError, match="is not a class"):
        ai_service("Assistant", client)
    with pytest.raises(UsageError, match=r"Empty has no method .* in a Protocol, or an abstract"):
        ai_service(Empty, client)


def test_a_renderer_that_reads_all_values() -> None:
    """It works, without the check for unused variables."""

    def render(template: str, values: Mapping[str, Any], /) -> str:
        return template % dict(values)

    class Assistant(Protocol):
        @user_message("Hi %(name)s")
        def greet(self, name: str, unused: str) -> str: ...

    model = ScriptedModel("a")
    client = ChatClient.builder(model).default_template_renderer(render).build()
    ai_service(Assistant, client).greet("Ann", "x")

    assert said(model) == [("user", "Hi Ann")]


def test_a_custom_renderer_that_misses_a_value() -> None:
    """Missing values are reported; a renderer that needs real values is not checked."""

    def render(template: str, values: Mapping[str, Any], /) -> str:
        return template % values

    class Assistant(Protocol):
        @user_message("Hi %(nmae)s")
        def greet(self, name: str) -> str: ...

    class Counts(Protocol):
        @user_message("%(count)d of %(kind)s")
        def count(self, count: int, kind: str) -> str: ...

    model = ScriptedModel("a")
    client = ChatClient.builder(model).default_template_renderer(render).build()
    with pytest.raises(UsageError, match=r"Assistant\.greet .*needs nmae; it has name"):
        ai_service(Assistant, client)
    ai_service(Counts, client).count(3, "tea")

    assert said(model) == [("user", "3 of tea")]


def test_attributes_of_a_parameter() -> None:
    """A template may use attributes of its variables."""

    class Assistant(Protocol):
        @user_message("Hi {city.name}")
        def greet(self, city: City) -> str: ...

    model = ScriptedModel("a")
    ai_service(Assistant, ChatClient.create(model)).greet(City(name="Rome"))

    assert said(model) == [("user", "Hi Rome")]


class Letters(Protocol):
    @user_message("Write to {client} about {topic}.")
    def letter(self, client: str, topic: str) -> str: ...


def test_parameters_may_have_any_name() -> None:
    """Names that the library uses itself are allowed, by position and by name."""
    letters = ai_service(Letters, ChatClient.create(ScriptedModel(lambda p: p.contents)))

    assert letters.letter(client="Acme", topic="money") == "Write to Acme about money."


class Clerk(Protocol):
    def say(self, text: str) -> str: ...

    async def asay(self, text: str) -> str: ...

    def do(self, text: str) -> None: ...

    def stream(self, text: str) -> Iterator[str]: ...

    def astream(self, text: str) -> AsyncIterator[str]: ...

    def explain(self, text: str) -> Result[str]: ...

    def tell(self, text: str) -> Iterator[StreamEvent]: ...

    def message(self, text: str) -> AssistantMessage: ...


def clerk() -> tuple[Clerk, ChatClient]:
    @tool
    def pay() -> str:
        """Pay."""
        return "paid"

    model = ScriptedModel(["One moment.", call("pay")], "Paid.")
    manager = ToolCallingManager(interceptors=[ToolApproval()])
    builder = ChatClient.builder(model).default_tools(pay).tool_calling_manager(manager)
    return ai_service(Clerk, builder.build()), builder.build()


async def list_of(pieces: AsyncIterator[str]) -> list[str]:
    return [piece async for piece in pieces]


@pytest.mark.feature("manager-sees-turn-waits")
@pytest.mark.parametrize(
    "ask",
    [
        lambda it: it.say("Pay!"),
        lambda it: it.do("Pay!"),
        lambda it: list(it.stream("Pay!")),
        lambda it: asyncio.run(it.asay("Pay!")),
        lambda it: asyncio.run(list_of(it.astream("Pay!"))),
    ],
    ids=["text", "nothing", "stream", "async", "async stream"],
)
def test_a_text_of_a_suspended_turn_is_an_error(ask: Any) -> None:
    """A suspended turn raises an error that has the pending turn."""
    service, client = clerk()
    with pytest.raises(EntityError, match="waits for approval of pay") as caught:
        ask(service)

    assert caught.value.text == "One moment."
    assert client.resume(caught.value.pending_turn, "approve").call().content() == "Paid."


@pytest.mark.feature("manager-sees-turn-waits")
def test_a_result_has_the_turn_that_waits() -> None:
    """`Result` and events have the pending turn, and a message has its calls."""
    result = clerk()[0].explain("Pay!")
    assert (result.content, result.finish_reason) == ("One moment.", "tool_call")
    assert result.pending_turn is not None
    assert list(result.pending_turn.to_decide()) == ["call_pay"]

    *_, needed, done = clerk()[0].tell("Pay!")
    assert isinstance(needed, ApprovalNeeded)
    assert (needed.turn.pending, type(done)) == (result.pending_turn.pending, Done)
    assert clerk()[0].message("Pay!").tool_calls == needed.turn.pending
    assert service(ROME)[0].chat("Hi") == ROME
