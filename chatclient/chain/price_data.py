"""Finds prices in the data of `genai-prices` (extra `prices`); loaded with the first model call."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any

from genai_prices.data_snapshot import get_snapshot

from chatclient._internal.logging import get_logger
from chatclient.chain.price_rates import Counts, ModelRates
from chatclient.chat.response import Cost, Usage

log = get_logger(__name__)

_CURRENCY = "USD"  # of all prices in the data


def find_price(
    provider: str, address: str, name: str
) -> Callable[[Usage, str | None], Cost | None] | None:
    """Return the price of the model *name*: a function of a usage and the service tier.

    The server's address says most about who sells it.
    """
    snapshot = get_snapshot()
    places = [each for each in snapshot.providers if each.id == provider]
    with suppress(LookupError):
        places.insert(0, snapshot.find_provider(None, None, address))
    for place in places:
        with suppress(LookupError):
            return _price_of(*snapshot.find_provider_model(name, place, None, None))
    return None


def _price_of(seller: Any, model: Any) -> Callable[[Usage, str | None], Cost | None]:
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
