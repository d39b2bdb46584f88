"""What watching costs: the plain job with tracing off, with it on, and with nothing watched at all.

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

import chatclient.observers
import chatclient.pipeline
from chatclient import ChatClient
from chatclient.chain import ChatClientRequest, ChatClientResponse
from chatclient.operations import NOTHING_YET, ClientCall
from chatclient.providers.openai import OpenAIChatModel
from chatclient.runtime import Runtime
from chatclient.telemetry import Telemetry
from chatclient.watching import Prepare

AIM = 1.03
_NOWHERE = SimpleNamespace(result=None, note=lambda *_: None)


class _Unwatched:
    """Stands for an operation that nobody watches."""

    def __enter__(self) -> Any:
        return _NOWHERE

    def __exit__(self, *_: object) -> None: ...


_UNWATCHED = _Unwatched()


# A Mock in their place would cost more than what it replaces.
def _unobserved(*_: object) -> _Unwatched:
    return _UNWATCHED


def _no_observers(_: object) -> tuple[()]:
    return ()


async def _passed(
    prepare: Prepare, context: Any, runtime: Runtime, *_others: Any
) -> ChatClientResponse:
    call = ClientCall(NOTHING_YET, (), runtime.streaming, None)
    chain, prompt, context = await prepare(call, runtime)
    return await chain(ChatClientRequest(prompt, context, runtime))


@contextmanager
def no_trail() -> Generator[None, None, None]:
    """Take everything that watches out of the library."""
    with (
        mock.patch.object(chatclient.pipeline, "run_observed", _passed),
        mock.patch.object(Runtime, "observe", _unobserved),
    ):
        yield


@contextmanager
def no_tracing() -> Generator[None, None, None]:
    """Take tracing out of the library."""
    with mock.patch.object(chatclient.observers, "_telemetry_observers", _no_observers):
        yield


def measure(one: Callable[[], Any], repeat: int = 10) -> float:
    """Return the CPU seconds of one run."""
    started = time.process_time()
    for _ in range(repeat):
        one()
    return (time.process_time() - started) / repeat


def main() -> None:
    """Print a row for each way."""
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
            # In another order each time: who comes first finds the caches as somebody left them.
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
