"""Prices from cached rates equal those that genai-prices computes."""

import timeit
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from chatclient.chain.price_rates import Counts, ModelRates

genai_prices = pytest.importorskip("genai_prices")
data: Any = pytest.importorskip("genai_prices.data")
types: Any = pytest.importorskip("genai_prices.types")


def models() -> Iterator[tuple[Any, Any]]:
    return ((seller, model) for seller in data.providers for model in seller.models)


CONTRADICTORY = (
    Counts(100, 5, 101),
    Counts(100, 5, 60, 60),
    Counts(100, 5, None, 10, 11),
    Counts(100, 5, None, None, 1),
)


def some_counts(sizes: Iterable[int]) -> Iterator[Counts]:
    for size in sizes:
        yield Counts(size, 4_321)
        yield Counts(size, 17, size // 5, size // 2, size // 4, 3)


def expected(seller: Any, model: Any, counts: Counts, tier: str | None) -> Decimal | str:
    """Return the price that the package computes, or the type of its error."""
    given = {name: count for name, count in counts._asdict().items() if count is not None}
    context = None if tier is None else {"service_tier": tier}
    try:
        found = model.calc_price(genai_prices.Usage(**given), seller, price_context=context)
    except (LookupError, TypeError, ValueError) as error:
        return type(error).__name__
    price: Decimal = found.total_price
    return price


def computed(rates: ModelRates, counts: Counts) -> Decimal | str:
    try:
        return rates.price(counts)
    except (LookupError, TypeError, ValueError) as error:
        return type(error).__name__


def tiers_of(model: Any) -> set[str | None]:
    """Return the service tiers with prices of their own, and none."""
    return {None, *(each.when.get("service_tier") for each in model.price_variants or ())}


def sizes_of(model: Any) -> set[int]:
    """Return some numbers of input tokens, among them those at which the prices change."""
    prices = vars(model.get_prices(datetime.now(UTC))).values()
    starts = [tier.start for price in prices for tier in getattr(price, "tiers", ())]
    around = (start + more for start in starts for more in (0, 1))
    return {0, 1_500_000, *around}


def test_prices_of_all_models() -> None:
    """They are the same, to the last digit, in each service tier."""
    wrong: list[Any] = []
    checked = 0
    for seller, model in models():
        for tier in tiers_of(model):
            rates = ModelRates(seller, model, tier)
            for counts in some_counts(sizes_of(model)):
                found, wanted = computed(rates, counts), expected(seller, model, counts, tier)
                checked += 1
                if found != wanted:
                    wrong.append((seller.id, model.id, tier, counts, found, wanted))

    assert wrong == []
    assert checked > 4_000


@pytest.mark.parametrize("counts", CONTRADICTORY)
def test_numbers_that_contradict_each_other(counts: Counts) -> None:
    """They have the price, or the error, of the package."""
    for seller in data.providers:
        model = seller.models[0]
        found = computed(ModelRates(seller, model, None), counts)
        assert found == expected(seller, model, counts, None), model.id


def test_rates_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then a price takes less than a tenth of the package's time."""
    seller, model = next(
        (seller, model) for seller, model in models() if model.id == "claude-sonnet-4-5"
    )
    rates = ModelRates(seller, model, None)
    counts = Counts(1000, 100, 10, 10, 5, 1)
    rates.price(counts)
    by_package = min(timeit.repeat(lambda: expected(seller, model, counts, None), number=50))
    by_rates = min(timeit.repeat(lambda: rates.price(counts), number=50))

    assert by_rates < by_package / 10
    monkeypatch.setattr(type(model), "calc_price", None)
    assert rates.price(Counts(5, 5)) > 0


def conditional(*prices: tuple[Any, str]) -> Any:
    """Return a model with a price of its input for each condition."""
    return types.ModelInfo(
        "m",
        types.ClauseEquals("m"),
        prices=[
            types.ConditionalPrice(condition, prices=types.ModelPrice(input_mtok=Decimal(price)))
            for condition, price in prices
        ],
    )


def test_prices_that_depend_on_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The price of the minute counts, such as a lower one at night."""
    now = datetime.now(UTC)
    other = (now + timedelta(hours=6)).time()
    night = types.TimeOfDateConstraint(other, (now + timedelta(hours=7)).time())
    model = conditional((None, "2"), (night, "1"))
    rates = ModelRates(data.providers[0], model, None)
    assert rates.price(Counts(1_000_000, 0)) == 2

    night.start_time = (now - timedelta(hours=1)).time()
    night.end_time = (now + timedelta(hours=1)).time()
    assert rates.price(Counts(1_000_000, 0)) == 2  # until the minute has passed
    monkeypatch.setattr("time.time", lambda: now.timestamp() + 60)
    assert rates.price(Counts(1_000_000, 0)) == 1


def test_ranges_that_are_too_small() -> None:
    """The package is asked where a range has no room to measure."""
    tiers = types.TieredPrices(Decimal(1), [types.Tier(1, Decimal(2)), types.Tier(5, Decimal(3))])
    model = types.ModelInfo("m", types.ClauseEquals("m"), prices=types.ModelPrice(input_mtok=tiers))
    rates = ModelRates(data.providers[0], model, None)

    assert [rates.price(Counts(size, 0)) * 1_000_000 for size in (1, 2, 5, 6)] == [1, 4, 10, 18]


def test_a_model_without_prices() -> None:
    """It is free in the data, and an error of the package stays one."""
    free = types.ModelInfo("m", types.ClauseEquals("m"), prices=types.ModelPrice())
    broken = types.ModelInfo(
        "m", types.ClauseEquals("m"), prices=types.ModelPrice(input_mtok=Decimal(-1))
    )

    assert ModelRates(data.providers[0], free, None).price(Counts(1, 1)) == 0
    with pytest.raises(ValueError, match="Invalid price"):
        ModelRates(data.providers[0], broken, None).price(Counts(1, 1))
