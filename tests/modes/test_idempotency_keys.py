"""Idempotency keys, over successive and repeated turns."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from chatclient import ChatClient, ToolCall, ToolContext, UserMessage, tool
from chatclient.advisors import TOOL_CALLING_ORDER
from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor, PromptChatMemoryAdvisor
from chatclient.advisors.memory.session import SessionMemoryAdvisor
from chatclient.chain.chain import ChatClientRequest, ChatClientResponse, Next
from chatclient.chat.prompt import Prompt
from chatclient.chat.tool import USER_ID
from chatclient.chat.turn import TURN_KEY
from chatclient.errors import OverloadedError, UsageError
from chatclient.memory import InMemorySessionRepository, MessageWindowChatMemory, SessionService
from chatclient.testing import Answer, Ask, ScriptedModel, call
from chatclient.tools import ToolApproval, ToolCallingManager

INSIDE = TOOL_CALLING_ORDER + 10

keys: list[str] = []
ids = itertools.count()


@pytest.fixture(autouse=True)
def _no_keys() -> None:
    keys.clear()


@tool
def pay(amount: int, context: ToolContext) -> str:
    """Pay an amount."""
    keys.append(context.idempotency_key)
    return "paid"


def window() -> MessageWindowChatMemory:
    """Return a memory that soon shows as many messages in each turn."""
    return MessageWindowChatMemory(max_messages=8)


MEMORIES: dict[str, Callable[[], Any]] = {
    "messages": lambda: MessageChatMemoryAdvisor(window()),
    "messages, inside the loop": lambda: MessageChatMemoryAdvisor(window(), order=INSIDE),
    "system text": lambda: PromptChatMemoryAdvisor(window()),
    "system text, inside the loop": lambda: PromptChatMemoryAdvisor(window(), order=INSIDE),
    "session": lambda: SessionMemoryAdvisor(SessionService(InMemorySessionRepository())),
}


@pytest.fixture(params=MEMORIES)
def memory(request: pytest.FixtureRequest) -> Any:
    return MEMORIES[request.param]()


def using(name: str, **arguments: Any) -> Callable[[Prompt], Answer]:
    """Return an answer function that calls a tool after each user message."""

    def answer(prompt: Prompt) -> Answer:
        if isinstance(prompt.messages[-1], UserMessage):
            return call(name, arguments, id=f"id-{next(ids)}")
        return "Done."

    return answer


def payer(*advisors: Any, **manager: Any) -> ChatClient:
    """Return a client that pays five after each user message."""
    builder = ChatClient.builder(ScriptedModel(using("pay", amount=5))).default_tools(pay)
    builder = builder.tool_calling_manager(ToolCallingManager(**manager))
    return builder.default_advisors(*advisors).build()


class FailsInTheEnd:
    """An advisor that fails after the tools have run and before the turn is stored."""

    order = TOOL_CALLING_ORDER - 10

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        await call_next(request)
        raise OverloadedError("busy", provider="test")


@pytest.mark.feature("tool-options-doing-thing-once")
def test_each_turn_has_keys_of_its_own(ask: Ask, memory: Any) -> None:
    """Equal user messages after an equal history have different keys."""
    client = payer(memory)
    for _ in range(6):
        ask(client.prompt("Pay five more!").conversation("c"))

    assert len(set(keys)) == len(keys) == 6


def test_a_repeated_request_has_new_keys(ask: Ask, memory: Any) -> None:
    """Without a key of the application, the request may be meant twice."""
    client = payer(memory)
    for names in ((), (), ("order-1",), ("order-1",)):
        request = client.prompt("Pay!").conversation("c")
        for name in names:
            request = request.idempotency_key(name)
        with pytest.raises(OverloadedError):
            ask(request.advisors(FailsInTheEnd()))

    assert keys[2] == keys[3]
    assert len(set(keys)) == 3


def test_an_advisor_that_asks_again_stays_in_the_turn(ask: Ask) -> None:
    """Equal calls of both attempts have the same key."""

    class Retries:
        order = TOOL_CALLING_ORDER - 10

        async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
            await call_next(request)
            return await call_next(request)

    ask(payer(Retries()).prompt("Pay!"))

    assert len(keys) == 2
    assert len(set(keys)) == 1


@pytest.mark.parametrize("owner", ["tenant_id", "tenant", "user_id"])
def test_tenants_share_no_key(ask: Ask, owner: str) -> None:
    """Their keys differ although their turns have equal keys."""
    for name in ("acme", "globex"):
        ask(payer().prompt("Pay!").idempotency_key("order-1").tool_context({owner: name}))

    assert len(set(keys)) == 2


def test_no_id_can_imitate_two(ask: Ask) -> None:
    """Ids of conversations and users may have any characters."""
    for conversation, user in (("a\x1fb", "c"), ("a", "b\x1fc"), ("\ud800", "c"), ("?", "c")):
        request = payer().prompt("Pay!").idempotency_key("1").conversation(conversation)
        ask(request.advisor_params({USER_ID: user}))

    assert len(set(keys)) == 4


@pytest.mark.parametrize("key", ["", "  ", 7, None])
def test_an_idempotency_key_is_a_text(key: Any) -> None:
    """Any other type is refused before a request is sent."""
    with pytest.raises(UsageError, match="idempotency key"):
        payer().prompt("Pay!").idempotency_key(key)


@pytest.mark.feature("tool-options-doing-thing-once")
def test_a_job_that_is_delivered_twice_has_the_same_keys(ask: Ask, memory: Any) -> None:
    """Its first turn may be stored already; another job has other keys."""
    client = payer(memory)
    for job in ("job 1", "job 1", "job 2"):
        ask(client.prompt("Pay!").conversation("c").advisor_params({TURN_KEY: job}))

    assert keys[0] == keys[1] != keys[2]


def test_keys_of_jobs_without_a_memory(ask: Ask) -> None:
    """The key of the turn distinguishes equal requests."""
    client = payer()
    for job in (7, 7, 8):
        ask(client.prompt("Pay!").advisor_params({TURN_KEY: job}))

    assert keys[0] == keys[1] != keys[2]


def test_a_turn_that_waited_keeps_its_keys(ask: Ask, memory: Any) -> None:
    """Resuming needs no key, and the turn may have been stored before."""
    client = payer(memory, interceptors=[ToolApproval()])
    asked = client.prompt("Pay!").conversation("c").advisor_params({TURN_KEY: "job 1"})
    waiting = [ask(asked).answer.pending_turn().to_json() for _ in range(2)]
    for turn in (*waiting, waiting[0]):
        ask(client.resume(turn, "approve"))

    assert len(keys) == 3
    assert len(set(keys)) == 1


def test_keys_of_suspended_jobs_without_a_memory(ask: Ask) -> None:
    """The pending turn contains them."""
    client = payer(interceptors=[ToolApproval()])
    for job in (7, 7, 8):
        waiting = ask(client.prompt("Pay!").advisor_params({TURN_KEY: job})).answer.pending_turn()
        ask(client.resume(waiting.to_json(), "approve"))

    assert keys[0] == keys[1] != keys[2]


def test_agents_have_other_keys_in_other_turns(ask: Ask) -> None:
    """A repeated turn has the same keys, although the agent has no memory."""
    agent = payer().as_tool("agent", "Pays.")
    model = ScriptedModel(using("agent", request="Pay Bob!"))
    builder = ChatClient.builder(model).default_tools(agent)
    client = builder.default_advisors(MessageChatMemoryAdvisor(window())).build()
    for job in ("job 1", "job 1", "job 2"):
        ask(client.prompt("Go!").conversation("c").advisor_params({TURN_KEY: job}))
    ask(client.prompt("Go!").conversation("c"))

    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


def test_agents_with_memory_keep_their_keys(ask: Ask) -> None:
    """The agent's turn was stored before its caller's turn failed and was repeated."""
    agent = payer(MessageChatMemoryAdvisor(window())).as_tool("agent", "Pays.")
    asks: list[Answer] = [ToolCall(f"id-{n}", "agent", '{"request": "Pay!"}') for n in range(2)]
    model = ScriptedModel(asks[0], OverloadedError("busy", provider="test"), asks[1], "Done.")
    client = ChatClient.builder(model).default_tools(agent).build()
    with pytest.raises(OverloadedError):
        ask(client.prompt("Go!").conversation("c").idempotency_key("1"))
    ask(client.prompt("Go!").conversation("c").idempotency_key("1"))

    assert len(keys) == 2
    assert len(set(keys)) == 1
