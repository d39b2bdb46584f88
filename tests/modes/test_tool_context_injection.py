"""The tool context, which is passed to tools and not to the model."""

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Annotated, Any, Optional
from uuid import UUID

import pytest

from chatclient import (
    Advisor,
    AssistantMessage,
    ChatClient,
    ChatOptions,
    Message,
    ToolContext,
    UserMessage,
    tool,
)
from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor, PromptChatMemoryAdvisor
from chatclient.chain.chain import TOOL_CALLING_ORDER
from chatclient.chat.messages import ToolCall
from chatclient.chat.tool import CONVERSATION_ID, USER_ID
from chatclient.chat.turn import TURN_KEY
from chatclient.errors import ConnectionFailedError, ToolUsageError
from chatclient.memory import MessageWindowChatMemory
from chatclient.providers.openai.chat import OpenAIChatModel
from chatclient.services import MemoryId
from chatclient.testing import Answer, Ask, ScriptedModel, call
from chatclient.tools import (
    DataToolCallback,
    FunctionToolCallback,
    ToolCallingManager,
    ToolDefinition,
    ToolMemoryId,
)
from tests.modes.test_tool_calling import client_of, results
from tests.support.servers import ChatServer, completion

Start = Callable[..., ChatServer]

seen: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    seen.clear()


@tool
def typed(x: int, context: ToolContext) -> None:
    seen.append(context["tenant"])


@tool
async def in_text(context: "ToolContext", x: int = 1) -> None:
    await asyncio.sleep(0)
    seen.append(context["tenant"])


@tool
def maybe(x: int, context: Optional[ToolContext] = None) -> None:  # noqa: UP045 - people write it
    seen.append(context["tenant"] if context is not None else None)


@tool
def keyword_only(x: int, *, context: ToolContext | None = None) -> None:
    seen.append(context["tenant"] if context is not None else None)


class Desk:
    @tool
    def method(self, x: int, context: ToolContext) -> None:
        seen.append(context["tenant"])

    @tool
    @classmethod
    def of_class(cls, context: ToolContext, x: int) -> None:
        seen.append(context["tenant"])


def by_input(text: str, context: ToolContext) -> None:
    seen.append(context["tenant"])


DOCUMENTS: dict[str, Any] = {
    "typed": typed,
    "in_text": in_text,
    "maybe": maybe,
    "keyword_only": keyword_only,
    "method": Desk(),
    "of_class": Desk(),
    "by_input": FunctionToolCallback(by_input, input_type=dict[str, int]),
}


@pytest.mark.parametrize("name", list(DOCUMENTS))
def test_the_context_is_passed_to_its_parameter(ask: Ask, name: str) -> None:
    """A parameter with its type receives it, and is not in the schema."""
    model = ScriptedModel(call(name, '{"x": 1}'), "done")
    ask(ChatClient.create(model).prompt("x").tools(DOCUMENTS[name]).tool_context(tenant="acme"))

    assert seen == ["acme"]
    callbacks = model.prompts[0].options.tool_callbacks or ()
    [definition] = [c.definition for c in callbacks if c.definition.name == name]
    assert "context" not in str(definition.input_schema)


@pytest.mark.feature("tool-options-model-makes-up-injected")
def test_a_model_cannot_supply_the_context(ask: Ask) -> None:
    """An argument of the model with the parameter's name is ignored."""
    model = ScriptedModel(call("typed", '{"x": 1, "context": {"tenant": "evil"}}'), "done")
    ask(client_of(model, typed).prompt("x").tool_context(tenant="acme"))

    assert seen == ["acme"]


def test_contexts_add_up(ask: Ask) -> None:
    """Contexts of options, client and request are merged; the request has precedence."""

    @tool
    def show(context: ToolContext) -> None:
        seen.append(dict(context))

    model = ScriptedModel(
        call("show"), "done", options=ChatOptions(tool_context={"a": 1, "b": 1, "c": 1})
    )
    client = ChatClient.builder(model).default_tools(show)
    built = client.default_tool_context({"b": 2}, c=2).build()
    ask(built.prompt("x").tool_context({"c": 3}).tool_context(d=4))

    assert seen == [{"a": 1, "b": 2, "c": 3, "d": 4}]


@pytest.mark.feature(
    "tool-options-tool-context-read-map", "lc4j-tool-invocation-parameters-mutable"
)
def test_a_context_is_read_only(ask: Ask) -> None:
    """A tool cannot change the context of later calls."""

    @tool
    def vandal(context: ToolContext) -> None:
        context["tenant"] = "evil"  # type: ignore[index]

    model = ScriptedModel([call("vandal"), call("typed", '{"x": 1}')], "done")
    ask(client_of(model, vandal, typed).prompt("x").tool_context(tenant="acme"))

    assert seen == ["acme"]
    assert "does not support item assignment" in results(model.prompts[1])[0]


def test_a_tool_knows_its_call(ask: Ask) -> None:
    """The id and name of the call, and how often the turn has called the tool."""

    @tool(name="renamed")
    def show(context: ToolContext, n: int = 0) -> None:
        seen.append((context.tool_call_id, context.tool_name, context.attempt))

    calls = [call("renamed", f'{{"n": {n}}}', id=f"c{n}") for n in range(3)]
    model = ScriptedModel(calls[:2], calls[2], "done")
    ask(client_of(model, show).prompt("x"))

    assert sorted(seen) == [("c0", "renamed", 1), ("c1", "renamed", 2), ("c2", "renamed", 3)]


# --- the conversation ---


@pytest.mark.feature("lc4j-tool-memory-id")
def test_the_conversations_id_can_be_injected(ask: Ask) -> None:
    """A parameter marked with `ToolMemoryId` receives it; it is in the context as well."""

    @tool
    def note(text: str, memory: Annotated[str, ToolMemoryId], context: ToolContext) -> None:
        seen.append((text, memory, context.conversation_id))

    model = ScriptedModel(call("note", '{"text": "t", "memory": "mine"}'), "done")
    ask(client_of(model, note).prompt("x").conversation("c-1"))

    assert seen == [("t", "c-1", "c-1")]
    callbacks = model.prompts[0].options.tool_callbacks
    assert callbacks is not None
    assert list(callbacks[0].definition.input_schema["properties"]) == ["text"]


def test_the_memory_id_without_a_conversation(ask: Ask) -> None:
    """It is the default, or None if the type allows it."""

    @tool
    def default(memory: Annotated[str, ToolMemoryId] = "nobody") -> str:
        return memory

    @tool
    def optional(memory: Annotated[str | None, ToolMemoryId]) -> str:
        return repr(memory)

    model = ScriptedModel([call("default"), call("optional")], "done")
    ask(client_of(model, default, optional).prompt("x"))

    assert results(model.prompts[1]) == ["nobody", "None"]


# --- the idempotency key ---


@tool
def pay(amount: int, context: ToolContext) -> str:
    """Pay an amount."""
    seen.append(context.idempotency_key)
    return "paid"


ids = itertools.count()


def pay_call(amount: int = 5) -> ToolCall:
    return call("pay", f'{{"amount": {amount}}}', id=f"id-{next(ids)}")


def keys_of(
    ask: Ask, *answers: Answer, text: str = "Pay!", conversation: str = "c", **manager: Any
) -> list[str]:
    """Return the keys that payments got in a turn."""
    seen.clear()
    script: list[Answer] = [*answers, "done"]
    client = client_of(ScriptedModel(*script), pay, **manager)
    ask(client.prompt(text).conversation(conversation).idempotency_key(text))
    return [str(key) for key in seen]


def test_text_with_surrogates_has_a_key(ask: Ask) -> None:
    """A user text with a lone surrogate has a key."""
    (key,) = keys_of(ask, pay_call(), text="Pay \ud83d")

    assert len(key) == 32


@pytest.mark.feature("tool-options-doing-thing-once")
def test_a_repeated_turn_has_the_same_keys(ask: Ask) -> None:
    """The ids of the calls differ when a turn is repeated; the keys do not."""
    first = keys_of(ask, pay_call(), [pay_call(6), pay_call()])
    second = keys_of(ask, pay_call(), [pay_call(6), pay_call()])

    assert sorted(first) == sorted(second)
    assert len(set(first)) == 3


@pytest.mark.feature("tool-options-doing-thing-once")
@pytest.mark.parametrize("batch", [True, False])
def test_the_same_call_again_has_another_key(ask: Ask, batch: bool) -> None:
    """Equal calls in one turn have different keys, in one round or in two."""
    calls = [pay_call(), pay_call()]
    keys = keys_of(ask, *([calls] if batch else calls))

    assert len(set(keys)) == 2
    assert sorted(keys) == sorted(keys_of(ask, [pay_call(), pay_call()], blocking_concurrency=2))


@pytest.mark.feature("tool-options-doing-thing-once")
def test_idempotency_keys_differ(ask: Ask) -> None:
    """They depend on arguments, user text, conversation and the number of the turn."""
    base = keys_of(ask, pay_call())[0]
    history: list[Message] = [UserMessage("Pay!"), AssistantMessage("done")]
    later = client_of(ScriptedModel(pay_call(), "done"), pay)
    others = {
        keys_of(ask, pay_call(6))[0],
        keys_of(ask, pay_call(), text="Pay again!")[0],
        keys_of(ask, pay_call(), conversation="d")[0],
    }
    seen.clear()
    ask(later.prompt(history).user("Pay!").conversation("c"))

    assert len({base, *others, *map(str, seen)}) == 5
    assert all(len(key) == 32 for key in others)


MEMORIES: list[Callable[[MessageWindowChatMemory], Advisor]] = [
    MessageChatMemoryAdvisor,
    lambda memory: MessageChatMemoryAdvisor(memory, tool_messages=False),
    lambda memory: MessageChatMemoryAdvisor(memory, order=TOOL_CALLING_ORDER + 10),
    PromptChatMemoryAdvisor,
]
memories = pytest.mark.parametrize(
    "advisor_of", MEMORIES, ids=["messages", "answers only", "inside the loop", "system text"]
)


@pytest.mark.feature("tool-options-doing-thing-once")
@memories
def test_keys_of_turns_with_equal_beginnings(ask: Ask, advisor_of: Any) -> None:
    """They differ, also if a bounded memory sends as many messages as in the turn before."""
    script = [answer for n in range(8) for answer in (pay_call(), f"Paid, the {n}th time.")]
    memory = advisor_of(MessageWindowChatMemory(max_messages=4))
    client = client_of(ScriptedModel(*script), pay).mutate().default_advisors(memory).build()
    results = [ask(client.prompt("Pay!").conversation("c")) for _ in range(8)]

    assert len(set(seen)) == 8
    assert results[-1].response.context.keys() == {CONVERSATION_ID}


@memories
def test_keys_of_a_continued_turn(ask: Ask, advisor_of: Any) -> None:
    """Messages before a failure do not change them."""

    def turn(*answers: Answer) -> ChatClient:
        memory = MessageWindowChatMemory()
        memory.add("c", [UserMessage("Hi"), AssistantMessage("Hello")])
        client = client_of(ScriptedModel(*answers), pay)
        return client.mutate().default_advisors(advisor_of(memory)).build()

    client = turn(pay_call(), ConnectionFailedError("gone"), pay_call(), "done")
    with pytest.raises(ConnectionFailedError) as caught:
        ask(client.prompt("Pay!").conversation("c").idempotency_key("1"))
    assert caught.value.trail is not None
    again = client.prompt(caught.value.trail.messages).conversation("c")
    ask(again.idempotency_key("1"))
    whole = turn(pay_call(), pay_call(), "done").prompt("Pay!").conversation("c")
    ask(whole.idempotency_key("1"))

    assert seen[:2] == seen[2:]
    assert len(set(seen)) == 2


@pytest.mark.feature("tool-options-doing-thing-once")
@memories
def test_a_turn_that_is_delivered_twice_has_the_same_keys(ask: Ask, advisor_of: Any) -> None:
    """The turn's key identifies it, although it is in the memory already."""
    memory = advisor_of(MessageWindowChatMemory())
    model = ScriptedModel(*[answer for _ in range(3) for answer in (pay_call(), "done")])
    client = client_of(model, pay).mutate().default_advisors(memory).build()
    for job in ("job 1", "job 1", "job 2"):
        ask(client.prompt("Pay!").conversation("c").advisor_params({TURN_KEY: job}))

    assert seen[0] == seen[1] != seen[2]


def test_an_equal_request_of_another_user_has_another_key(ask: Ask) -> None:
    """Without a conversation, the user id distinguishes equal requests."""
    for user in ("ann", "bob"):
        client = client_of(ScriptedModel(pay_call(), "done"), pay)
        ask(client.prompt("Pay!").advisor_params({USER_ID: user}))

    assert len(set(seen)) == 2


def test_keys_in_an_own_loop() -> None:
    """The manager counts earlier calls in the history, with the same keys as the client's loop."""
    manager = ToolCallingManager()
    model = ScriptedModel(pay_call(), pay_call(), "done")
    client = client_of(model, pay).mutate().default_tool_context({TURN_KEY: "1"}).build()
    messages: Any = [UserMessage("Pay!")]
    while (
        response := client.prompt().messages(messages).tool_calling(False).call().chat_response()
    ).has_tool_calls():
        messages = manager.execute_tool_calls(model.prompts[-1], response).conversation_history
    own = [str(key) for key in seen]
    seen.clear()
    whole = client_of(ScriptedModel(pay_call(), pay_call(), "done"), pay).prompt("Pay!")
    whole.idempotency_key("1").call().content()

    assert len(set(own)) == 2
    assert seen == own


# --- nothing of it reaches the model ---

SECRETS = ("tenant-4711", "s3cr3t", "conv-0815")


@tool
def busy(x: int, context: ToolContext, memory: Annotated[str, ToolMemoryId]) -> str:
    """Do something with secrets."""
    assert (context["tenant"], context["token"], memory) == SECRETS
    assert context.idempotency_key
    return "fine"


@tool
def clumsy(context: ToolContext) -> str:
    """Fail with a `KeyError`."""
    raise ValueError(str(context.get("nothing")))


@pytest.mark.feature("tool-options-never-sent-model")
def test_nothing_of_the_context_is_sent(ask: Ask, chat_server: Start) -> None:
    """Requests contain neither values of the context nor names of its parameters."""
    calls = [
        ("c1", "busy", '{"x": 1}'),
        ("c2", "clumsy", "{}"),
        ("c3", "data", "{}"),
        ("c4", "agent", '{"request": "?"}'),
        ("c5", "busy", '{"x": "?"}'),
    ]
    server = chat_server(completion(None, *calls), "done")
    nested = ScriptedModel(call("busy", '{"x": 1}'), "nested")
    definition = ToolDefinition("data", "Data.", {"type": "object", "properties": {}})
    data = DataToolCallback(definition, lambda made, context: f"{len(context)} values")
    agent = ChatClient.builder(nested).default_tools(busy).build().as_tool("agent", "An agent.")
    model = OpenAIChatModel("stub", api_key="k", base_url=server.url)
    client = ChatClient.builder(model).default_tools(busy, clumsy, data, agent).build()
    tenant, token, conversation = SECRETS
    request = client.prompt("x").tool_context(tenant=tenant, token=token)
    with client:
        executions = ask(request.conversation(conversation)).executions

    sent = json.dumps(server.requests)
    assert len(server.requests) == 2
    assert [each.is_error for each in executions] == [False, True, False, False, True]
    assert not [secret for secret in SECRETS if secret in sent]
    assert not [name for name in ("context", "memory", "idempotency") if name in sent.lower()]
    assert not [secret for secret in SECRETS if secret in str(nested.prompts[0].messages)]


def test_a_missing_context_value(ask: Ask) -> None:
    """The error is raised to the application, and shows how to pass the value."""

    @tool
    def orders(context: ToolContext) -> str:
        assert context.get("tenant", "nobody") == "nobody"
        assert "tenant" not in context
        return str(context["tenant"])

    model = ScriptedModel(call("orders"), "never")
    with pytest.raises(KeyError) as caught:
        ask(ChatClient.builder(model).default_tools(orders).build().prompt("x"))

    assert isinstance(caught.value, ToolUsageError)
    told = "the tool context has no 'tenant'; pass it with .tool_context({'tenant': ...})"
    assert str(caught.value) == told


@pytest.mark.parametrize("marker", [ToolMemoryId, ToolMemoryId(), MemoryId])
@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [(str, "7", "7"), (int, "7", 7), (int | None, "7", 7), (UUID, str(UUID(int=7)), UUID(int=7))],
)
def test_an_injected_id_has_the_declared_type(
    ask: Ask, marker: Any, kind: Any, given: str, expected: Any
) -> None:
    """The model never fills it in, whichever marker is used."""

    def note(memory: Any) -> str:
        """Note."""
        seen.append(memory)
        return "noted"

    note.__annotations__["memory"] = Annotated[kind, marker]
    model = ScriptedModel(call("note", {"memory": "invented"}), "done")
    ask(client_of(model, note).prompt("x").conversation(given))

    assert seen == [expected]
    assert model.prompts[0].options.tool_callbacks is not None
    assert "memory" not in str(model.prompts[0].options.tool_callbacks[0].definition.input_schema)


def test_a_conversation_id_of_another_type(ask: Ask) -> None:
    """The application gets the error, because the model cannot fix it."""

    def note(memory: Annotated[int, ToolMemoryId]) -> str:
        """Note."""
        return "noted"

    client = client_of(ScriptedModel(call("note", {}), "done"), note)
    with pytest.raises(ToolUsageError, match="'note' takes the conversation's id"):
        ask(client.prompt("x").conversation("ann"))
