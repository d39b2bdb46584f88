"""The cost of model calls, from the offline data of `genai-prices` (extra `prices`)."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache, lru_cache, partial
from importlib.util import find_spec
from typing import Any

from chatclient._internal.logging import get_logger
from chatclient.chain.price_rates import Counts, ModelRates
from chatclient.chat.model import ChatModel
from chatclient.chat.options import ChatOptions
from chatclient.chat.response import ChatResponse, Cost, Usage
from chatclient.runtime.runtime import Runtime

log = get_logger(__name__)

# Names of providers that differ from ours.
_PROVIDERS = {"gemini": "google", "moonshot": "moonshotai", "xai": "x-ai", "zhipu": "zhipuai"}
_CURRENCY = "USD"  # of all prices in the data

_Price = Callable[[Usage, str | None], Cost | None]
"""Returns the cost of a usage in a service tier; None if the numbers make no sense."""


@cache
def prices_installed() -> bool:
    """Return whether the extra `prices` is installed."""
    return find_spec("genai_prices") is not None


_loaded = False


async def load_prices(runtime: Runtime) -> None:
    """Load the prices, which takes a moment, if they are installed; they are never fetched.

    The first call of the process does that; others need the prices only when they have a response.
    """
    global _loaded  # noqa: PLW0603 - of the process
    if _loaded or not prices_installed():
        return
    _loaded = True
    await runtime.invoke(__import__, "genai_prices.data")


def with_cost(response: ChatResponse, model: ChatModel, options: ChatOptions) -> ChatResponse:
    """Return *response* of *model* with the cost of its usage, if there is a price."""
    usage = response.usage
    if not usage or usage.cost is not None or not prices_installed():
        return response
    price = _price_for(model, options, response.metadata.model)
    if price is None:
        return response
    cost = price(usage, response.metadata.values.get("service_tier"))
    return response.with_usage(replace(usage, cost=cost))


def unpriced_models(model: ChatModel, options: ChatOptions) -> list[str]:
    """Return the names of the models without a price, of those that *model* may call."""
    return [
        each.name if each is not model else options.model or model.name
        for each in models_in(model)
        if _price_for(each, options if each is model else each.options) is None
    ]


def models_in(model: ChatModel) -> Iterator[ChatModel]:
    """Yield *model*, or the models between which it chooses."""
    inner: tuple[ChatModel, ...] | None = getattr(model, "models", None)
    if inner is None:
        yield model
        return
    for each in inner:
        yield from models_in(each)


def _price_for(model: ChatModel, options: ChatOptions, reported: str = "") -> _Price | None:
    requested = options.model or model.name
    return _price(model.provider, model.address, requested, reported)


@lru_cache(maxsize=1024)  # one line in the log for each model without a price
def _price(provider: str, address: str, requested: str, reported: str) -> _Price | None:
    if provider == "local":
        return _nothing
    for name in filter(None, (reported, requested)):
        if (found := _find(_PROVIDERS.get(provider, provider), address, name)) is not None:
            return found
    log.info("no price", provider=provider, model=requested)
    return None


def _nothing(_usage: Usage, _tier: str | None) -> Cost:
    """Return the cost of a model that runs on this machine."""
    return Cost(currency=_CURRENCY)


def _find(provider: str, address: str, name: str) -> _Price | None:
    """Return the price of the model *name* in the data; the server's address says most."""
    # Imported on first use: loading the data takes a moment.
    from genai_prices.data_snapshot import get_snapshot  # noqa: PLC0415

    snapshot = get_snapshot()
    places = [each for each in snapshot.providers if each.id == provider]
    with suppress(LookupError):
        places.insert(0, snapshot.find_provider(None, None, address))
    for place in places:
        with suppress(LookupError):
            return _price_of(*snapshot.find_provider_model(name, place, None, None))
    return None


def _price_of(seller: Any, model: Any) -> _Price:
    """Return the price of a *model* in the data."""
    rates_of = lru_cache(maxsize=16)(partial(ModelRates, seller, model))  # by service tier

    def price(usage: Usage, tier: str | None) -> Cost | None:
        try:
            return Cost(rates_of(tier).price(_counts(usage)), _CURRENCY)
        except (LookupError, TypeError, ValueError) as error:  # such as more cached than all tokens
            log.info("no cost", model=model.id, error=type(error).__name__)
            return None

    return price


def _counts(usage: Usage) -> Counts:
    """Return the numbers of *usage* as the data takes them."""
    return Counts(
        max(0, usage.input_tokens),
        max(0, usage.output_tokens),
        usage.cache_read_tokens,
        usage.cache_write_tokens,
        # Anthropic's numbers: a longer lifetime costs more, and searches cost by number.
        _native(usage, "cache_creation", "ephemeral_1h_input_tokens"),
        _native(usage, "server_tool_use", "web_search_requests"),
    )


def _native(usage: Usage, group: str, name: str) -> int | None:
    values = usage.native.get(group)
    return values.get(name) if isinstance(values, Mapping) else None
