"""What model calls cost: in usage, trail, spans, metrics and budgets."""

import json
import logging
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from chatclient import ChatClient, ChatOptions, ChatResponse, Cost, Usage
from chatclient.advisors import SPENT, Budget
from chatclient.chain import prices
from chatclient.chat.response import ChatResponseMetadata
from chatclient.chat.serialization import response_from_dict, response_to_dict
from chatclient.errors import BudgetExceededError, UnknownPriceError, UsageError
from chatclient.observability import Telemetry
from chatclient.providers import FallbackChatModel, compatible_model
from chatclient.testing import Answer, ScriptedModel, call
from chatclient.tools import tool
from tests.support.ask import Ask
from tests.support.servers import ChatServer

pytest.importorskip("genai_prices")

USAGE = Usage(1000, 100, cache_read_tokens=100)
# Per million tokens of gpt-4.1-mini: 0.40, 0.10 from the cache, 1.60 for output.
COST = Cost(Decimal("0.00053"))


class Priced(ScriptedModel):
    """A scripted model of a provider with prices."""

    def __init__(
        self, *answers: Answer, model: str = "gpt-4.1-mini", provider: str = "openai"
    ) -> None:
        super().__init__(*answers, usage=USAGE, options=ChatOptions(model=model))
        self._provider = provider

    @property
    def provider(self) -> str:
        return self._provider


@tool
def look_up() -> str:
    """Look something up."""
    return "found"


def test_cost_of_a_turn(ask: Ask) -> None:
    """The usage of response, rounds and trail says what they cost."""
    client = ChatClient.create(Priced(call("look_up"), "done"))
    asked = ask(client.prompt("?").tools(look_up))

    assert asked.answer.trail().usage.cost == Cost(COST.amount * 2)
    assert [each.usage.cost for each in asked.answer.trail().rounds] == [COST, COST]
    assert str(asked.answer.trail()).endswith("2000 + 200 tokens, 0.00106 USD")


def test_cost_in_spans_and_metrics(ask: Ask) -> None:
    """Spans have the cost and the currency; a counter sums the cost up by model."""
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry = Telemetry(tracers, MeterProvider([reader]))
    ask(ChatClient.builder(Priced("ok")).observers(telemetry).build().prompt("?"))

    spans = {span.name: span.attributes or {} for span in exporter.get_finished_spans()}
    for name in ("chat gpt-4.1-mini", "invoke_agent"):
        assert spans[name]["chatclient.usage.cost"] == pytest.approx(0.00053)
        assert spans[name]["chatclient.usage.currency"] == "USD"
    data = json.loads(reader.get_metrics_data().to_json())  # type: ignore[union-attr]
    metrics = data["resource_metrics"][0]["scope_metrics"][0]["metrics"]
    counter = next(each for each in metrics if each["name"] == "chatclient.client.cost")
    (point,) = counter["data"]["data_points"]
    assert point["value"] == pytest.approx(0.00053)
    assert point["attributes"]["gen_ai.request.model"] == "gpt-4.1-mini"


@pytest.mark.parametrize(
    ("model", "provider", "priced"),
    [
        ("gemini-2.5-flash", "gemini", True),
        ("claude-sonnet-4-5", "anthropic", True),
        ("grok-4", "xai", True),
        ("mistral-small-latest", "mistral", True),
        ("gpt-4.1-mini", "openai-compatible", False),
        ("private", "openai", False),
    ],
)
def test_names_of_providers(ask: Ask, model: str, provider: str, priced: bool) -> None:
    """Models are found by our names of providers."""
    asked = ask(ChatClient.create(Priced("ok", model=model, provider=provider)).prompt("?"))

    assert (asked.answer.trail().usage.cost is not None) is priced


def test_unknown_price_is_logged_once(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    """A model without a price has no cost, and a turn with such a call neither."""
    name = f"secret-{ask.mode}"
    client = ChatClient.create(Priced("1", "2", model=name))
    with caplog.at_level(logging.INFO, "chatclient.chain.prices"):
        costs = [ask(client.prompt("?")).answer.trail().usage.cost for _ in range(2)]

    assert costs == [None, None]
    assert [record.message for record in caplog.records] == [
        f"no price provider='openai' model='{name}'"
    ]
    assert (Usage(1, 1) + Usage(1, 1, cost=COST)).cost is None
    assert (Usage() + Usage(1, 1, cost=COST)).cost == COST


def test_model_that_the_provider_reports_counts(ask: Ask) -> None:
    """The name in the response is that of the price, such as behind a deployment's name."""
    answer = ChatResponse.of("ok").with_usage(USAGE)
    answer = ChatResponse(
        answer.generations, ChatResponseMetadata(model="gpt-4.1-mini", usage=USAGE)
    )
    asked = ask(ChatClient.create(Priced(answer, model="mine", provider="azure")).prompt("?"))

    assert asked.answer.trail().usage.cost == COST


def test_address_of_the_server_counts(ask: Ask, chat_server: Callable[..., ChatServer]) -> None:
    """A server elsewhere that has a model of the same name has no price."""
    server = chat_server("ok")
    with compatible_model("vllm", "gpt-4.1-mini", base_url=server.url) as model:
        asked = ask(ChatClient.create(model).prompt("?"))

    assert asked.answer.trail().usage.cost is None


def test_local_models_cost_nothing(ask: Ask) -> None:
    """A model that runs on this machine has the price 0."""
    client = ChatClient.create(Priced("ok", model="any", provider="local"))

    assert ask(client.prompt("?")).answer.trail().usage.cost == Cost()


def test_price_of_the_model_that_answered(ask: Ask) -> None:
    """After a fallback, the second model's price counts."""
    first = Priced(LookupError("busy"), model="gpt-4.1")
    model = FallbackChatModel(first, Priced("ok"), on=LookupError)

    assert ask(ChatClient.create(model).prompt("?")).answer.trail().usage.cost == COST


@pytest.mark.parametrize(
    ("native", "amount"),
    [
        ({}, "0.00375"),  # 1,000 tokens at 3.75 for a million
        ({"cache_creation": {"ephemeral_1h_input_tokens": 1000}}, "0.006"),
        ({"server_tool_use": {"web_search_requests": 1}}, "0.01375"),
    ],
)
def test_details_that_anthropic_reports(native: dict[str, Any], amount: str) -> None:
    """Cache writes cost by their lifetime, searches by number."""
    usage = Usage(1000, 0, cache_write_tokens=1000, native=native)
    response = ChatResponse(metadata=ChatResponseMetadata(usage=usage))
    model = Priced(model="claude-sonnet-4-5", provider="anthropic")

    found = prices.with_cost(response, model, model.options).usage.cost
    assert found == Cost(Decimal(amount))


def test_numbers_that_make_no_sense() -> None:
    """A usage with more cached tokens than all has no cost, and the response is kept."""
    usage = Usage(10, 5, cache_read_tokens=1000)
    response = ChatResponse(metadata=ChatResponseMetadata(usage=usage))
    model = Priced()

    assert prices.with_cost(response, model, model.options).usage.cost is None


def test_budget_with_prices(ask: Ask) -> None:
    """A limit of cost needs no function."""
    model = Priced(*(call("look_up", id=str(n)) for n in range(9)))
    budget = Budget(cost=0.001)
    client = ChatClient.builder(model).default_advisors(budget).default_tools(look_up).build()
    with pytest.raises(BudgetExceededError) as caught:
        ask(client.prompt("?"))

    assert caught.value.spent == pytest.approx(0.00106)
    assert len(model.prompts) == 2


def test_budget_counts_cost(ask: Ask) -> None:
    """A budget without limits says what the turn cost."""
    client = ChatClient.builder(Priced("ok")).default_advisors(Budget()).build()
    spent = ask(client.prompt("?")).response.context[SPENT]

    assert spent.cost == pytest.approx(0.00053)


def test_budget_refuses_models_without_a_price(ask: Ask) -> None:
    """Before anything is sent; also one of the models of a fallback."""
    unknown = Priced("never", model="unpriced")
    for model in (unknown, FallbackChatModel(Priced("never"), unknown)):
        client = ChatClient.builder(model).default_advisors(Budget(cost=1.0)).build()
        with pytest.raises(UnknownPriceError, match="the price of unpriced is not known") as caught:
            ask(client.prompt("?"))
        assert caught.value.models == ("unpriced",)
    assert unknown.prompts == []


def test_without_the_extra(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no cost, and a limit of cost needs a function."""
    monkeypatch.setattr(prices, "prices_installed", lambda: False)
    monkeypatch.setattr("chatclient.advisors.budget.prices_installed", lambda: False)
    asked = ask(ChatClient.create(Priced("ok")).prompt("?"))

    assert asked.answer.trail().usage.cost is None
    with pytest.raises(UsageError, match=r"pip install 'chatclient\[prices\]'"):
        Budget(cost=1.0)


def test_prices_are_loaded_with_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading is done before the call, in a thread if a loop runs; nothing is fetched."""
    monkeypatch.setattr(prices, "_loaded", False)
    monkeypatch.delitem(sys.modules, "genai_prices.data", raising=False)
    ChatClient.create(Priced("ok")).prompt("?").call().content()

    assert "genai_prices.data" in sys.modules


def test_cost_is_stored_with_a_response() -> None:
    """A response with a cost survives as JSON, with all digits."""
    usage = Usage(1, 2, cost=Cost(Decimal("0.10000000000000000001"), "EUR"))
    stored = json.loads(json.dumps(response_to_dict(ChatResponse.of("x").with_usage(usage))))

    assert response_from_dict(stored).usage == usage


def test_sum_of_costs() -> None:
    """Costs in one currency have a sum."""
    assert Cost(Decimal("0.1")) + Cost(Decimal("0.2")) == Cost(Decimal("0.3"))
    with pytest.raises(UsageError, match="USD and EUR"):
        _ = Cost() + Cost(currency="EUR")
