"""The rates of a model in the data of `genai-prices`, computed once instead of for each call.

The package computes a price in some 100 µs. Within a range of input tokens, a price is the sum of
the numbers of tokens, each times a rate. So the rates are taken from a few prices of the package,
which therefore says what each number costs, and only that is computed for a call.
"""

import time
from bisect import bisect_left
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

_SECONDS = 60  # after which the prices may be others, for example because it is night


class Counts(NamedTuple):
    """What a model call is billed for; None for numbers that the provider does not report."""

    input_tokens: int
    output_tokens: int
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cache_write_1h_tokens: int | None = None
    web_searches: int | None = None


class _Rates(NamedTuple):
    """The price of a call without tokens, and of each number."""

    call: Decimal
    input: Decimal
    output: Decimal
    cache_read: Decimal
    cache_write: Decimal
    cache_write_1h: Decimal
    web_search: Decimal


class ModelRates:
    """The prices of a model in one service tier, in US dollars.

    Args:
        seller: The provider in the data.
        model: Its model.
        tier: The service tier, or None.
    """

    __slots__ = ("_context", "_minute", "_model", "_prices", "_rates", "_seller", "_starts")

    def __init__(self, seller: Any, model: Any, tier: str | None) -> None:
        self._seller = seller
        self._model = model
        self._context = None if tier is None else {"service_tier": tier}
        self._minute = -1
        self._prices: Any = None
        self._starts: list[int] = []
        # By range of input tokens; None for a range in which the package has to be asked.
        self._rates: dict[int, _Rates | None] = {}

    def price(self, counts: Counts) -> Decimal:
        """Return the price of a call.

        Raises:
            LookupError, TypeError, ValueError: The package has no price for such numbers.
        """
        minute = int(time.time()) // _SECONDS
        if minute != self._minute:
            self._update(minute)
        size, output, read, write, long_write, searches = counts
        read, write, long_write = read or 0, write or 0, long_write or 0
        rates = None
        if read + write <= size and long_write <= write:  # else they contradict each other
            rates = self._rates_for(size)
        if rates is None:
            return self._exact(counts)
        amount = rates.call + rates.input * size + rates.output * output
        if read or write:
            amount += rates.cache_read * read + rates.cache_write * write
            amount += rates.cache_write_1h * long_write
        if searches:
            amount += rates.web_search * searches
        return amount

    def _update(self, minute: int) -> None:
        """Forget the rates if other prices apply in this minute."""
        now = datetime.now(UTC)
        prices = (self._model.get_prices(now), self._model.get_prices(now, self._context))
        if prices != self._prices:
            self._rates = {}
            self._starts = sorted({start for price in prices for start in _starts_of(price)})
            self._prices = prices
        self._minute = minute

    def _rates_for(self, size: int) -> _Rates | None:
        """Return the rates of calls with *size* input tokens."""
        at = bisect_left(self._starts, size)
        try:
            return self._rates[at]
        except KeyError:
            rates = self._rates[at] = self._measured(at)
            return rates

    def _measured(self, at: int) -> _Rates | None:
        """Return the rates in a range, from prices of the package."""
        # Its smallest size that leaves room for a token in the cache.
        size = self._starts[at - 1] + 1 if at else 1
        if at < len(self._starts) and size + 1 > self._starts[at]:
            return None
        try:
            base = self._exact(Counts(size, 0))
            by_input = self._exact(Counts(size + 1, 0)) - base
            by_write = self._exact(Counts(size, 0, 0, 1)) - base
            return _Rates(
                call=base - by_input * size,
                input=by_input,
                output=self._exact(Counts(size, 1)) - base,
                cache_read=self._exact(Counts(size, 0, 1)) - base,
                cache_write=by_write,
                cache_write_1h=self._exact(Counts(size, 0, 0, 1, 1)) - base - by_write,
                web_search=self._exact(Counts(size, 0, web_searches=1)) - base,
            )
        except (LookupError, TypeError, ValueError):
            return None

    def _exact(self, counts: Counts) -> Decimal:
        """Return the price that the package computes."""
        from genai_prices import Usage  # noqa: PLC0415 - an extra

        given = {name: count for name, count in counts._asdict().items() if count is not None}
        found = self._model.calc_price(Usage(**given), self._seller, price_context=self._context)
        amount: Decimal = found.total_price
        return amount


def _starts_of(prices: Any) -> list[int]:
    """Return the numbers of input tokens above which *prices* are others."""
    values: Mapping[str, Any] = vars(prices)
    return [tier.start for value in values.values() for tier in getattr(value, "tiers", ())]
