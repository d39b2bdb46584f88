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

from chatclient import ChatClient, ChatModel, ChatOptions, ChatResponse, Usage, tool
from chatclient.advisors import Budget
from chatclient.chain import prices
from chatclient.chat import Cost
from chatclient.chat.response import ChatResponseMetadata
from chatclient.chat.serialization import response_from_dict, response_to_dict
from chatclient.errors import BudgetExceededError, UnknownPriceError, UsageError
from chatclient.observability import Telemetry
from chatclient.providers import (
    AnthropicChatModel,
    FallbackChatModel,
    GeminiChatModel,
    OpenAIChatModel,
    OpenAIResponsesChatModel,
    compatible_model,
)
from chatclient.providers.anthropic import decoding as anthropic
from chatclient.providers.gemini import decoding as gemini
from chatclient.providers.openai import chat_decoding as chat, responses_decoding as responses
from chatclient.providers.openai.dialect import OPENAI
from chatclient.testing import Answer, Ask, ScriptedModel, call
from tests.support.batch_server import BatchServer
from tests.support.loopback import LoopbackServer
from tests.support.messages_server import message
from tests.support.servers import ChatServer, Reply, completion

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
    """The usage of response, rounds and trail has the cost."""
    client = ChatClient.create(Priced(call("look_up"), "done"))
    asked = ask(client.prompt("?").tools(look_up))

    assert asked.answer.trail().usage.cost == Cost(COST.amount * 2)
    assert [each.usage.cost for each in asked.answer.trail().rounds] == [COST, COST]
    assert str(asked.answer.trail()).endswith("2000 (10% cached) + 200 tokens, 0.00106 USD")


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
    """The price is that of the model in the response, such as behind a deployment's name."""
    answer = ChatResponse.of("ok").with_usage(USAGE)
    answer = ChatResponse(
        answer.generations, ChatResponseMetadata(model="gpt-4.1-mini", usage=USAGE)
    )
    asked = ask(ChatClient.create(Priced(answer, model="mine", provider="azure")).prompt("?"))

    assert asked.answer.trail().usage.cost == COST


def test_address_of_the_server_counts(ask: Ask, chat_server: Callable[..., ChatServer]) -> None:
    """Another server with a model of the same name has no price."""
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


def price_of(response: ChatResponse, model: ChatModel) -> Decimal | None:
    """Return the cost of *response* of *model* in US dollars."""
    cost = prices.with_cost(response, model, model.options).usage.cost
    return None if cost is None else cost.amount


def claude(**usage: Any) -> ChatResponse:
    counts = {"input_tokens": 1000, "output_tokens": 0, **usage}
    return anthropic.decode_response(message("ok", model="claude-sonnet-4-5", usage=counts))


@pytest.mark.parametrize(
    ("usage", "amount"),
    [
        ({}, "0.003"),  # 1,000 tokens at 3.00 for a million
        ({"input_tokens": 0, "cache_creation_input_tokens": 1000}, "0.00375"),
        (
            {
                "input_tokens": 0,
                "cache_creation_input_tokens": 1000,
                "cache_creation": {"ephemeral_1h_input_tokens": 1000},
            },
            "0.006",
        ),
        ({"server_tool_use": {"web_search_requests": 1}}, "0.013"),
        ({"service_tier": "standard", "speed": "standard"}, "0.003"),
    ],
)
def test_details_that_anthropic_reports(usage: dict[str, Any], amount: str) -> None:
    """Cache writes cost by their lifetime, searches by number."""
    assert price_of(claude(**usage), AnthropicChatModel(api_key="k")) == Decimal(amount)


def iteration(kind: str, tokens: int, output: int, **more: Any) -> dict[str, Any]:
    return {"type": kind, "input_tokens": tokens, "output_tokens": output, **more}


OPUS = {"model": "claude-opus-4-5"}


@pytest.mark.parametrize(
    ("iterations", "tokens", "amount"),
    [
        ([], (1000, 10), "0.00315"),
        ([iteration("message", 400, 4), iteration("message", 600, 6)], (1000, 10), "0.00315"),
        ([iteration("compaction", 100, 10), iteration("message", 1000, 10)], (1100, 20), "0.0036"),
        # At 5.00 and 25.00, the prices of the model that gave advice.
        ([iteration("advisor_message", 100, 10, **OPUS)], (1100, 20), "0.0039"),
        # Each request by itself is below the 200,000 tokens from which on prices are higher.
        ([iteration("compaction", 199_000, 0)], (200_000, 10), "0.60015"),
        (
            [
                iteration("message", 100, 10, **OPUS),
                iteration("message", 50, 0, **OPUS),  # not billed
                iteration("fallback_message", 1000, 10, model="claude-sonnet-4-5"),
            ],
            (1100, 20),
            "0.0039",
        ),
    ],
)
def test_requests_within_an_answer(
    iterations: list[Any], tokens: tuple[int, int], amount: str
) -> None:
    """Compactions, advisors and declined attempts count, each at the price of its model."""
    response = claude(output_tokens=10, iterations=iterations)

    assert (response.usage.input_tokens, response.usage.output_tokens) == tokens
    assert price_of(response, AnthropicChatModel(api_key="k")) == Decimal(amount)


def gemini_answer(model: str, **usage: Any) -> dict[str, Any]:
    part = {"content": {"role": "model", "parts": [{"text": "ok"}]}, "finishReason": "STOP"}
    return {"candidates": [part], "modelVersion": model, "usageMetadata": usage}


SOUND: dict[str, Any] = {
    "promptTokenCount": 1000,
    "promptTokensDetails": [
        {"modality": "TEXT", "tokenCount": 100},
        {"modality": "AUDIO", "tokenCount": 900},
    ],
    "candidatesTokenCount": 100,
}


@pytest.mark.parametrize(
    ("model", "usage", "amount"),
    [
        ("gemini-2.5-flash", SOUND, "0.00118"),  # 0.30 for text, 1.00 for sound, 2.50 for output
        (
            "gemini-2.5-flash",
            {
                **SOUND,
                "cachedContentTokenCount": 900,
                "cacheTokensDetails": [{"modality": "AUDIO", "tokenCount": 900}],
            },
            "0.00037",
        ),
        (
            "gemini-2.5-flash-image",  # 30.00 for images
            {
                "promptTokenCount": 10,
                "candidatesTokenCount": 1300,
                "candidatesTokensDetails": [{"modality": "IMAGE", "tokenCount": 1290}],
            },
            "0.038728",
        ),
    ],
)
def test_sound_and_images_of_gemini(model: str, usage: dict[str, Any], amount: str) -> None:
    """Tokens of sound and of images have prices of their own, also in the cache."""
    response = gemini.decode_response(gemini_answer(model, **usage))

    assert price_of(response, GeminiChatModel(model, api_key="k")) == Decimal(amount)


def test_cost_of_sound_in_a_turn(ask: Ask) -> None:
    """The sound that a model hears is part of the cost of the turn."""
    body = gemini_answer("gemini-2.5-flash", **SOUND)

    def answer(path: str, _headers: object, _body: object) -> Reply:
        start, end = (b"data: ", b"\r\n\r\n") if "stream" in path else (b"", b"")
        return Reply(start + json.dumps(body).encode() + end)

    with (
        LoopbackServer(answer) as server,
        GeminiChatModel(api_key="k", base_url=server.url) as model,
    ):
        asked = ask(ChatClient.create(model).prompt("?"))

    assert asked.answer.trail().usage.cost == Cost(Decimal("0.00118"))


@pytest.mark.parametrize(
    ("name", "cached", "amount"),
    [
        ("gpt-audio", None, "0.03437"),  # 2.50, 32.00 for sound; 10.00 and 64.00 for output
        ("gpt-realtime", {"audio_tokens": 500, "text_tokens": 50}, "0.01866"),  # 0.40 if cached
        ("gpt-realtime", {}, None),  # it is not known what was cached
        ("gpt-4o-audio-preview", None, None),  # the price of its sound is not in the data
    ],
)
def test_sound_of_openai(name: str, cached: dict[str, int] | None, amount: str | None) -> None:
    """Audio tokens of Chat Completions have prices of their own, also in the cache."""
    more = {} if cached is None else {"cached_tokens": 550, "cached_tokens_details": cached}
    usage = {
        "prompt_tokens": 1000,
        "prompt_tokens_details": {"audio_tokens": 900, **more},
        "completion_tokens": 100,
        "completion_tokens_details": {"audio_tokens": 80},
    }
    data = {**completion("ok"), "model": name, "usage": usage}
    cost = price_of(chat.decode_response(data, OPENAI), OpenAIChatModel(name, api_key="k"))

    assert cost == (Decimal(amount) if amount else None)


@pytest.mark.parametrize(
    ("used", "tools", "tokens", "amount"),
    [
        ({}, [], (1000, 100), "0.00045"),  # at 0.25 and 2.00
        ({"web_search": {"num_requests": 2}}, [], (1000, 100), "0.02045"),  # 10.00 for a thousand
        (
            {"image_gen": {"input_tokens": 10, "output_tokens": 4000}},
            [{"type": "image_generation", "model": "gpt-image-1"}],
            (1010, 4100),
            "0.1605",
        ),
        ({"image_gen": {"input_tokens": 1, "output_tokens": 1}}, [], (1001, 101), None),
    ],
)
def test_tools_of_the_responses_api(
    used: dict[str, Any], tools: list[Any], tokens: tuple[int, int], amount: str | None
) -> None:
    """Searches have a price; images are drawn by another model, which may be unknown."""
    data = {
        "id": "r",
        "status": "completed",
        "output": [],
        "model": "gpt-5-mini",
        "usage": {"input_tokens": 1000, "output_tokens": 100},
        "tool_usage": used,
        "tools": tools,
    }
    response = responses.decode_response(data, "openai")

    assert (response.usage.input_tokens, response.usage.output_tokens) == tokens
    found = price_of(response, OpenAIResponsesChatModel(api_key="k"))
    assert found == (None if amount is None else Decimal(amount))


@pytest.mark.parametrize(
    ("values", "native", "when", "model", "share"),
    [
        ({"service_tier": "priority"}, {}, "service_tier", "openai:gpt-4.1-mini", "1.75"),
        ({"processing": "batch"}, {}, "processing", "openai:gpt-4.1-mini", "0.5"),
        ({}, {"serviceTier": "priority"}, "service_tier", "google:gemini-3.8-flash-tts", "1.8"),
        ({}, {"speed": "fast"}, "speed", "anthropic:claude-opus-4-8", "2"),
    ],
)
def test_tiers(
    values: dict[str, str], native: dict[str, str], when: str, model: str, share: str
) -> None:
    """The service tier, the speed and the processing change the price."""
    provider, _, name = model.partition(":")
    snapshot = pytest.importorskip("genai_prices.data_snapshot").get_snapshot()
    _, found = snapshot.find_provider_model(name, None, provider, None)
    if not any(when in variant.when for variant in found.price_variants):
        pytest.skip("an older release of the package has no such price")

    def price(values: dict[str, str], native: dict[str, str]) -> Decimal:
        usage = Usage(1000, 100, native=native)
        metadata = ChatResponseMetadata(model=name, usage=usage, values=values)
        amount = price_of(ChatResponse(metadata=metadata), Priced(model=name, provider=provider))
        assert amount is not None
        return amount

    assert price(values, native) == Decimal(share) * price({}, {})


@pytest.mark.parametrize("name", ["openai", "anthropic", "gemini"])
def test_cost_of_a_batch(name: str) -> None:
    """Answers of a provider's batch API cost half."""
    bodies: dict[str, dict[str, Any]] = {
        "openai": {**completion("ok"), "usage": {"prompt_tokens": 1000, "completion_tokens": 0}},
        "anthropic": message("ok", usage={"input_tokens": 1000, "output_tokens": 0}),
        "gemini": gemini_answer("", promptTokenCount=1000),
    }
    with BatchServer(lambda _request: (200, {**bodies[name], "model": ""})) as server:
        models: dict[str, ChatModel] = {
            "openai": OpenAIChatModel(
                "gpt-4.1-mini", api_key="k", base_url=f"{server.url}/v1", dialect=OPENAI
            ),
            "anthropic": AnthropicChatModel("claude-sonnet-4-5", api_key="k", base_url=server.url),
            "gemini": GeminiChatModel(api_key="k", base_url=f"{server.url}/v1beta"),
        }
        client = ChatClient.create(models[name])
        batch = client.batch(["?"], use_batch_api=True, collect_seconds=0.02, poll_seconds=0.01)
        [result] = batch

    expected = {"openai": "0.0002", "anthropic": "0.0015", "gemini": "0.00015"}
    assert result.usage.cost == Cost(Decimal(expected[name]))


def test_fields_that_the_package_does_not_know() -> None:
    """The numbers of a compatible server are those that the library has read."""
    usage = {"prompt_tokens": 1000, "completion_tokens": 0, "num_cached_tokens": 1000}
    data = {**completion("ok"), "model": "gpt-4.1-mini", "usage": usage}
    model = OpenAIChatModel("gpt-4.1-mini", api_key="k")

    assert price_of(chat.decode_response(data, OPENAI), model) == Decimal("0.0001")


def test_numbers_that_make_no_sense() -> None:
    """A usage with more cached tokens than all has no cost, and the response is kept."""
    usage = Usage(10, 5, cache_read_tokens=1000)
    response = ChatResponse(metadata=ChatResponseMetadata(usage=usage))

    assert price_of(response, Priced()) is None


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
    """A budget without limits reports the cost of the turn."""
    client = ChatClient.builder(Priced("ok")).default_advisors(Budget()).build()
    spent = ask(client.prompt("?")).response.turn.spent

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
