"""Cost of observation: the plain job without observers, with tracing off and with tracing on.

    python benchmarks/tracing.py [--repeat 300]

"None" takes tracing out of the library, which no application can; "off" is the library as it is,
with OpenTelemetry's API loaded and nothing set up; "on" is its SDK with an exporter that keeps
spans in memory. The trail is recorded in all three; "no trail" shows what that costs. CPU time,
each way in turn, medians of the ratios.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from stub_server import running

import chatclient.client.pipeline
import chatclient.observability.observers
from chatclient import ChatClient, ChatClientResponse, Runtime
from chatclient.client.pipeline import Pipeline
from chatclient.client.request_settings import RequestSettings
from chatclient.observability import ClientCall, Telemetry
from chatclient.observability.operations import EMPTY_PROMPT
from chatclient.providers import OpenAIChatModel
from chatclient.structured import StructuredOutput

AIM = 1.03
_NOWHERE = SimpleNamespace(result=None, note=lambda *_: None)


class _Unwatched:
    """Replaces an operation that has no observers."""

    def __enter__(self) -> Any:
        return _NOWHERE

    def __exit__(self, *_: object) -> None: ...


_UNWATCHED = _Unwatched()


# A Mock would cost more than the code that it replaces.
def _unobserved(*_: object) -> _Unwatched:
    return _UNWATCHED


def _no_observers(_: object) -> tuple[()]:
    return ()


async def _unwatched(
    self: Pipeline,
    settings: RequestSettings,
    runtime: Runtime,
    output: StructuredOutput[Any] | None = None,
) -> ChatClientResponse:
    call = ClientCall(EMPTY_PROMPT, (), runtime.streaming, None)
    chain, request = await self._prepare(settings, output, call, runtime)
    return await chain(request)


@contextmanager
def no_trail() -> Generator[None, None, None]:
    """Remove all observation from the library."""
    with (
        mock.patch.object(Pipeline, "run", _unwatched),
        mock.patch.object(Runtime, "observe", _unobserved),
    ):
        yield


@contextmanager
def no_tracing() -> Generator[None, None, None]:
    """Remove tracing from the library."""
    with mock.patch.object(
        chatclient.observability.observers, "_telemetry_observers", _no_observers
    ):
        yield


def measure(one: Callable[[], Any], repeat: int = 10) -> float:
    """Return the CPU seconds of one run."""
    started = time.process_time()
    for _ in range(repeat):
        one()
    return (time.process_time() - started) / repeat


def main() -> None:
    """Print a row for each variant."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=300)
    arguments = parser.parse_args()
    tracers = TracerProvider()
    exporter = InMemorySpanExporter()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    with running() as url:
        model = OpenAIChatModel("stub", api_key="test", base_url=f"{url}/plain")
        off = ChatClient.create(model)
        on = ChatClient.builder(model).observers(Telemetry(tracers)).build()

        def ask(client: ChatClient) -> float:
            return measure(lambda: client.prompt("What is 1 + 2?").call().content())

        def without(what: Callable[[], AbstractContextManager[None]]) -> float:
            with what():
                return ask(off)

        ways: dict[str, Callable[[], float]] = {
            "none": lambda: without(no_tracing),
            "off": lambda: ask(off),
            "on": lambda: ask(on),
            "no trail": lambda: without(no_trail),
        }
        rows: list[dict[str, float]] = []
        for _ in range(arguments.repeat):
            # The order changes each time, because the first one finds cold caches.
            rows.append({name: ways[name]() for name in random.sample(sorted(ways), len(ways))})
            exporter.clear()
    print(f"{'tracing':10} {'plain job':>12} {'ratio':>7} {'aim':>6}")
    for name in ways:
        seconds = statistics.median(row[name] for row in rows)
        ratio = statistics.median(row[name] / row["none"] for row in rows)
        aim = f"{AIM:.2f} {'ok' if ratio <= AIM else 'over'}" if name == "off" else ""
        print(f"{name:10} {seconds * 1e3:9.3f} ms {ratio:7.3f} {aim:>6}")


if __name__ == "__main__":
    main()
