"""Budgets: what counts, when a turn ends, and nested turns."""

import contextvars
import threading
from dataclasses import replace
from typing import Any

import pytest

from chatclient import ChatClient, ChatResponse, tool
from chatclient.advisors.budget import Budget
from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor
from chatclient.advisors.usage_store import InMemoryUsageStore
from chatclient.chat.response import ChatResponseMetadata, Usage
from chatclient.chat.turn import Spent
from chatclient.errors import BudgetExceededError, UsageError
from chatclient.memory import SummarizingChatMemory, Window
from chatclient.testing import Ask, Asked, ScriptedModel, call
from chatclient.tools import ToolApproval, ToolCallingManager, ToolMetadata

READ = ToolMetadata(effect="read")


@tool
def look_up() -> str:
    """Look something up."""
    return "found"


def looping(rounds: int) -> ScriptedModel:
    return ScriptedModel(*(call("look_up", id=str(n)) for n in range(rounds)), "done")


def client_of(model: ScriptedModel, **limits: Any) -> ChatClient:
    budget = Budget(**limits)
    return ChatClient.builder(model).default_advisors(budget).default_tools(look_up).build()


def price(answer: ChatResponse) -> float:
    return answer.usage.total_tokens / 10


@pytest.mark.feature("advisors-budgets")
@pytest.mark.parametrize(
    ("limits", "calls", "unit", "spent"),
    [
        ({"total_tokens": 40}, 3, "total_tokens", 45),
        ({"total_tokens": 45}, 3, "total_tokens", 45),
        ({"input_tokens": 11}, 2, "input_tokens", 20),
        ({"output_tokens": 5}, 1, "output_tokens", 5),
        ({"calls": 2}, 2, "calls", 2),
        ({"cost": 2.0, "price": price}, 2, "cost", 3.0),
    ],
)
def test_a_turn_ends_when_a_limit_is_reached(
    ask: Ask, limits: Any, calls: int, unit: str, spent: float
) -> None:
    """All rounds count; the error has the amount spent and the limit."""
    model = looping(9)
    with pytest.raises(BudgetExceededError) as caught:
        ask(client_of(model, **limits).prompt("?"))

    assert len(model.prompts) == calls
    assert (caught.value.unit, caught.value.spent) == (unit, spent)
    assert caught.value.limit == limits[unit]


def test_numbers_in_budget_errors(ask: Ask) -> None:
    """They have plain digits: neither `2e+06` tokens nor 0.30000000000000004 dollars."""
    model = ScriptedModel(call("look_up"), "never", usage=Usage(2_000_000, 345_678))
    with pytest.raises(BudgetExceededError, match=r"spent 2345678 of 2000000 \(total_tokens\);"):
        ask(client_of(model, total_tokens=2_000_000).prompt("?"))
    with pytest.raises(BudgetExceededError, match=r"spent 0.3 of 0.25 \(cost\);"):
        ask(client_of(looping(9), cost=0.25, price=lambda answer: 0.1).prompt("?"))


def test_an_answer_that_is_there_is_not_thrown_away(ask: Ask) -> None:
    """If the last answer exceeds the budget, it is returned, and `spent` has its cost."""
    result = ask(client_of(looping(1), total_tokens=16, cost=9, price=price).prompt("?"))

    assert result.text == "done"
    assert result.response.turn.spent == Spent(Usage(20, 10), 2, 3.0)


def test_each_turn_has_its_own_budget(ask: Ask) -> None:
    """Amounts spent in one turn do not count in the next."""
    model = ScriptedModel("a", "b", "c")
    client = client_of(model, calls=1)

    assert [ask(client.prompt("?")).text for _ in range(3)] == ["a", "b", "c"]


def agent(model: ScriptedModel, **limits: Any) -> Any:
    client = ChatClient.builder(model).default_advisors(Budget(**limits)).build()
    return client.as_tool("expert", "Knows everything.")


def test_agents_spend_from_the_turn_of_their_caller(ask: Ask) -> None:
    """Calls of an agent count towards the outer budget, also if several agents run in parallel."""
    inner = ScriptedModel(lambda prompt: "an answer", usage=Usage(100, 0))
    questions = [call("expert", '{"request": "?"}', id=str(n)) for n in range(2)]
    outer = ScriptedModel(questions, "done")
    for limit, fits in ((200, False), (230, True)):
        outer = ScriptedModel(questions, "done")
        client = ChatClient.builder(outer).default_advisors(Budget(total_tokens=limit)).build()
        request = client.prompt("?").tools(agent(inner))
        if fits:
            result = ask(request)
            assert result.response.turn.spent.usage == Usage(220, 10)
            assert result.response.turn.spent.calls == 4
        else:
            with pytest.raises(BudgetExceededError):
                ask(request)


def test_an_agent_stops_when_the_turn_around_it_has_to(ask: Ask) -> None:
    """When the outer budget is spent, no client of the turn sends a request."""
    inner = ScriptedModel()
    outer = ScriptedModel(call("expert", '{"request": "?"}'), "done")
    client = ChatClient.builder(outer).default_advisors(Budget(calls=1)).build()
    with pytest.raises(BudgetExceededError, match="the turn has spent 1 of 1"):
        ask(client.prompt("?").tools(agent(inner)))

    assert inner.prompts == []
    assert len(outer.prompts) == 1


@pytest.mark.feature("advisors-budgets")
def test_agents_without_a_budget_count_as_well(ask: Ask) -> None:
    """Every request that is sent within the turn counts."""
    inner = ChatClient.create(ScriptedModel(lambda prompt: "an answer"))
    outer = ScriptedModel(*(call("expert", '{"request": "?"}', id=str(n)) for n in range(9)))
    client = ChatClient.builder(outer).default_tools(inner.as_tool("expert", "Knows everything."))
    with pytest.raises(BudgetExceededError, match="spent 4 of 4"):
        ask(client.default_advisors(Budget(calls=4)).build().prompt("?"))

    assert len(outer.prompts) == 2


@pytest.mark.feature("advisors-budgets")
def test_auxiliary_calls_count_for_the_budget(ask: Ask) -> None:
    """The summary that a memory writes after the turn counts, too."""
    helper = ScriptedModel(lambda prompt: "in short", usage=Usage(100, 0))
    few = Window.messages(2)
    memory = SummarizingChatMemory(helper, trigger=few, window=few)
    builder = ChatClient.builder(ScriptedModel("a", "b"))
    client = builder.default_advisors(MessageChatMemoryAdvisor(memory), Budget()).build()
    ask(client.prompt("x").conversation("c"))
    result = ask(client.prompt("y").conversation("c"))

    assert result.response.turn.spent == Spent(Usage(110, 5), 2)


def test_what_a_turn_leaves_running_is_booked_no_more() -> None:
    """Requests of a thread that outlives its turn do not count."""
    model = ScriptedModel("late")
    later = ChatClient.create(model)
    threads: list[threading.Thread] = []

    @tool
    def begin() -> str:
        """Begin something."""
        context = contextvars.copy_context()
        request = later.prompt("?").call()
        threads.append(threading.Thread(target=lambda: context.run(request.content)))
        return "begun"

    client = client_of(ScriptedModel(call("begin"), "done"), calls=2)
    answer = client.prompt("?").tools(begin).call()
    spent = answer.chat_client_response().turn.spent
    threads[0].start()
    threads[0].join()

    assert spent.calls == 2
    assert model.unused == 0
    assert answer.trail().inner == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {"calls": 0},
        {"total_tokens": -1},
        {"calls": 1, "key": lambda request: "u"},
        {"calls": 1, "store": InMemoryUsageStore()},
        {"calls": 1, "period": "week"},
        {"calls": 1, "period": 0},
        {"calls": 1, "period": "day", "key": "user"},
        {"calls": 1, "period": "day", "store": object()},
    ],
)
def test_limits_have_to_make_sense(wrong: Any) -> None:
    """Invalid limits, periods, keys and stores are refused."""
    with pytest.raises(UsageError):
        Budget(**wrong)


def test_several_budgets_count_each_call_once(ask: Ask) -> None:
    """Budgets of the client and of the request both apply, and each call counts once."""
    client = client_of(looping(3), calls=6)
    result = ask(client.prompt("x").advisors(Budget(calls=5)))
    assert result.response.turn.spent.calls == 4

    with pytest.raises(BudgetExceededError, match="spent 2 of 2"):
        ask(client_of(looping(3), calls=2).prompt("x").advisors(Budget(calls=5)))


def test_one_budget_given_twice_counts_each_call_once(ask: Ask) -> None:
    """It opens two ledgers, and the outer one counts what the inner one does."""
    budget = Budget(calls=4)
    builder = ChatClient.builder(looping(3)).default_tools(look_up).default_advisors(budget)

    assert ask(builder.build().prompt("x").advisors(budget)).text == "done"


@tool
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def approving(model: ScriptedModel, *advisors: Any) -> Any:
    manager = ToolCallingManager(interceptors=[ToolApproval()])
    builder = ChatClient.builder(model).default_tools(pay).tool_calling_manager(manager)
    return builder.default_advisors(*advisors).build()


def approved_to_the_end(ask: Ask, client: ChatClient) -> Asked:
    """Return the answer of a request after all its calls are approved."""
    asked = ask(client.prompt("?"))
    while (turn := asked.response.turn.pending) is not None:
        asked = ask(client.resume(turn.to_json(), "approve"))
    return asked


def paying(rounds: int) -> ScriptedModel:
    return ScriptedModel(*(call("pay", {"amount": n}, id=str(n)) for n in range(rounds)), "done")


@pytest.mark.feature("manager-suspended-turn-remembers")
def test_a_resumed_turn_keeps_its_spending(ask: Ask) -> None:
    """Each of several budgets continues its count when the turn is resumed."""
    budgets = Budget(calls=4, cost=9.0, price=price), Budget(cost=99.0, price=lambda answer: 10.0)
    result = approved_to_the_end(ask, approving(paying(3), *budgets))
    assert result.response.turn.spent == Spent(Usage(40, 20), 4, 6.0)

    model = paying(9)
    with pytest.raises(BudgetExceededError, match="spent 3 of 3"):
        approved_to_the_end(ask, approving(model, Budget(calls=3)))
    assert len(model.prompts) == 3

    with pytest.raises(BudgetExceededError, match=r"spent 30 of 30 \(cost\)"):
        dear = Budget(cost=30.0, price=lambda answer: 10.0)
        approved_to_the_end(ask, approving(paying(9), Budget(cost=9.0, price=price), dear))


def test_a_suspended_agent_keeps_its_spending(ask: Ask) -> None:
    """It counts once, for the agent and for the turn of its caller."""
    expert = approving(paying(2), Budget(calls=3)).as_tool("expert", "Pays.", metadata=READ)
    model = ScriptedModel(call("expert", '{"request": "?"}'), "done")
    client = ChatClient.builder(model).default_advisors(Budget(calls=5)).default_tools(expert)
    result = approved_to_the_end(ask, client.build())

    assert result.response.turn.spent.calls == 5
    assert [each.response.data for each in result.executions] == ["done"]


def test_negative_usage_does_not_increase_a_budget(ask: Ask) -> None:
    """A server or a custom price may report negative numbers."""
    answers = [
        replace(ChatResponse.of("x"), metadata=ChatResponseMetadata(usage=Usage(tokens, 0)))
        for tokens in (-1000, 5)
    ]
    model = ScriptedModel(*answers)
    budget = Budget(total_tokens=10, cost=1.0, price=lambda response: -5.0)
    client = ChatClient.builder(model).default_advisors(budget).build()

    spent = [ask(client.prompt("x")).response.turn.spent for _ in answers]
    assert [(each.usage.total_tokens, each.cost) for each in spent] == [(0, 0.0), (5, 0.0)]


@pytest.mark.parametrize(
    "note",
    [{}, 5, {"usage": {"input_tokens": -9}, "calls": 1, "cost": 0.0}, {"usage": {}, "calls": "x"}],
)
def test_changed_note_of_a_suspended_turn(note: Any) -> None:
    """A pending turn with negative amounts is refused, because it would increase the budget."""
    manager = ToolCallingManager(interceptors=[ToolApproval()])
    builder = ChatClient.builder(ScriptedModel(call("pay", {"amount": 1}), "done"))
    builder = builder.default_tools(pay).tool_calling_manager(manager)
    builder = builder.default_advisors(Budget(total_tokens=100))
    client = builder.build()
    turn = client.prompt("x").call().pending_turn()
    assert turn is not None
    changed = replace(turn, notes={**turn.notes, "budget 1": note})

    with pytest.raises(UsageError, match="not a pending turn"):
        client.resume(changed, dict.fromkeys(changed.to_decide(), True)).call().content()
