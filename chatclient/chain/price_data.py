"""Prices from the data of `genai-prices` (extra `prices`); loaded with the first model call.

The package knows what a provider's numbers mean, such as audio tokens, lifetimes of caches and
searches, and what each of them costs in a service tier or in a batch.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from decimal import Decimal
from functools import partial
from typing import Any

from genai_prices import Usage as Counts
from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import ModelInfo, Provider

from chatclient._internal.frozen import EMPTY
from chatclient._internal.logging import get_logger
from chatclient.chat.response import Cost, Usage

log = get_logger(__name__)

_CURRENCY = "USD"  # of all prices in the data

_SOUND_APART = ("azure", "openai")  # sellers whose models all have other prices for sound

Price = Callable[[Usage, Mapping[str, str]], Cost | None]
"""Returns the cost of a usage in a context, such as a service tier; None if it is not known."""


def find_price(provider: str, address: str, name: str) -> Price | None:
    """Return the price of the model *name*, or None if there is none."""
    found = _find(provider, address, name)
    return None if found is None else partial(_cost, *found)


def find_context_window(provider: str, address: str, name: str) -> int | None:
    """Return the size of the context window of the model *name* in tokens, or None."""
    found = _find(provider, address, name)
    return None if found is None else found[1].context_window


def _find(provider: str, address: str, name: str) -> tuple[Provider, ModelInfo] | None:
    """Return who sells the model *name*, and the model.

    The server's address identifies the seller best.
    """
    snapshot = get_snapshot()
    places = [each for each in snapshot.providers if each.id == provider]
    with suppress(LookupError):
        places.insert(0, snapshot.find_provider(None, None, address))
    for place in places:
        with suppress(LookupError):
            return snapshot.find_provider_model(name, place, None, None)
    return None


def _cost(
    seller: Provider, model: ModelInfo, usage: Usage, context: Mapping[str, str]
) -> Cost | None:
    amount = Decimal(0)
    try:
        for counts, name in _billed(seller, usage):
            billed = model
            if name is not None:
                _, billed = get_snapshot().find_provider_model(name, seller, None, None)
            price = billed.calc_price(counts, seller, price_context=context)
            _check_sound(counts, price.model_price, seller)
            amount += price.total_price
    except (LookupError, TypeError, ValueError) as error:  # such as more cached than all tokens
        log.info("no cost", model=model.id, error=type(error).__name__)
        return None
    return Cost(amount, _CURRENCY)


def _check_sound(counts: Counts, price: Any, seller: Any) -> None:
    """Refuse a price that counts OpenAI's sound as text, of which it costs a multiple."""
    for name in ("input_audio", "output_audio"):
        sound = counts.reported_value(f"{name}_tokens")
        if sound and seller.id in _SOUND_APART and getattr(price, f"{name}_mtok") is None:
            msg = f"no price for {name}_tokens"
            raise LookupError(msg)


def _billed(seller: Any, usage: Usage) -> list[tuple[Counts, str | None]]:
    """Return the numbers of each request that is billed by itself, and its model if it is another.

    They are those that the package finds in the provider's own numbers, if they add up to *usage*.
    """
    requests = usage.native.get("requests") or (usage.native,)
    found = [_read(seller, each) for each in requests]
    if (
        sum(each.reported_value("input_tokens") for each in found) == usage.input_tokens
        and sum(each.reported_value("output_tokens") for each in found) == usage.output_tokens
    ):
        models = [each.get("model") for each in requests]
    else:
        found, models = [Counts()], [None]
        found[0].input_tokens, found[0].output_tokens = usage.input_tokens, usage.output_tokens
    if len(found) == 1:  # compatible servers have fields that the package does not know
        for name in ("cache_read_tokens", "cache_write_tokens"):
            if not found[0].reported_value(name):
                setattr(found[0], name, getattr(usage, name))
    return list(zip(found, models, strict=True))


def _read(seller: Any, native: Mapping[str, Any]) -> Counts:
    """Return the numbers in a provider's usage, by the API of *seller* that has most of them."""
    read = [Counts()]
    response = {"usage": native, "usageMetadata": native}  # either is the name in one of the APIs
    for extractor in seller.extractors or ():
        with suppress(ValueError):
            read.append(seller.extract_usage(response, api_flavor=extractor.api_flavor)[1])
    counts = max(read, key=lambda each: len(vars(each)))
    cached = native.get("prompt_tokens_details", EMPTY).get("cached_tokens_details", EMPTY)
    if (sound := cached.get("audio_tokens")) is not None:  # the same as for searches
        counts.cache_audio_read_tokens = sound
    searches = native.get("tool_usage", EMPTY).get("web_search", EMPTY).get("num_requests")
    if searches:  # of OpenAI; the package knows the price, but not the field
        counts.web_searches = searches
    return counts
