"""The cost of model calls, if the extra `prices` is installed."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from importlib.util import find_spec

from chatclient._internal.logging import get_logger
from chatclient.chat.model import PROCESSING, ChatModel
from chatclient.chat.options import ChatOptions
from chatclient.chat.response import ChatResponse, Cost, Usage
from chatclient.runtime.runtime import Runtime

log = get_logger(__name__)

# Names of providers that differ from ours.
_PROVIDERS = {"gemini": "google", "moonshot": "moonshotai", "xai": "x-ai", "zhipu": "zhipuai"}

_Price = Callable[[Usage, Mapping[str, str]], Cost | None]
"""Returns the cost of a usage in a context, such as a service tier; None if it is not known."""


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
    requested = options.model or model.name
    price = _price(model.provider, model.address, requested, response.metadata.model)
    if price is None:
        return response
    # The price depends on the service tier, the speed, and whether it is a batch.
    values, native = response.metadata.values, response.usage.native
    [*_, native] = native.get("requests") or (native,)
    found = {
        "service_tier": values.get("service_tier")
        or native.get("service_tier")  # Anthropic
        or native.get("serviceTier"),  # Gemini
        "speed": native.get("speed"),
        PROCESSING: values.get(PROCESSING),
    }
    cost = price(usage, {name: value for name, value in found.items() if isinstance(value, str)})
    return response.with_usage(replace(usage, cost=cost))


def unpriced_models(model: ChatModel, options: ChatOptions) -> list[str]:
    """Return the names of the models without a price, of those that *model* may call."""
    names = []
    for each in models_in(model):
        name = (options if each is model else each.options).model or each.name
        if _price(each.provider, each.address, name, "") is None:
            names.append(name)
    return names


def models_in(model: ChatModel) -> Iterator[ChatModel]:
    """Yield *model*, or the models between which it chooses."""
    inner: tuple[ChatModel, ...] | None = getattr(model, "models", None)
    if inner is None:
        yield model
        return
    for each in inner:
        yield from models_in(each)


@lru_cache(maxsize=1024)  # one line in the log for each model without a price
def _price(provider: str, address: str, requested: str, reported: str) -> _Price | None:
    if provider == "local":
        return _nothing
    from chatclient.chain.price_data import find_price  # noqa: PLC0415 - an extra

    for name in filter(None, (reported, requested)):
        if (found := find_price(_PROVIDERS.get(provider, provider), address, name)) is not None:
            return found
    log.info("no price", provider=provider, model=requested)
    return None


def listed_context_window(model: ChatModel, options: ChatOptions) -> int | None:
    """Return the size of the context window of *model* in tokens, if the data has it."""
    if not prices_installed():
        return None
    return _context_window(model.provider, model.address, options.model or model.name)


@lru_cache(maxsize=1024)
def _context_window(provider: str, address: str, name: str) -> int | None:
    from chatclient.chain.price_data import find_context_window  # noqa: PLC0415 - an extra

    return find_context_window(_PROVIDERS.get(provider, provider), address, name)


def _nothing(_usage: Usage, _context: Mapping[str, str]) -> Cost:
    """Return the cost of a model that runs on this machine."""
    return Cost()
