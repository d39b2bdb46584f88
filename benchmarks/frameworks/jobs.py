"""The jobs that all frameworks run, and their measurement."""

import asyncio
import importlib.metadata
import json
import statistics
import sys
from collections.abc import Awaitable, Callable

from by_hand import HISTORY, HandWritten, measure

Job = Callable[[], Awaitable[str]]
Maker = Callable[[str, bool, bool], Job]
"""From a base URL, whether there is a tool `add(a, b)`, and whether the conversation begins with
`HISTORY`, to what is measured. The URL tells what the server answers: see `stub_server`."""


def compare(distribution: str, ask: Maker, stream: Maker) -> None:
    """Measure a framework and print its ratios as JSON.

    Args:
        distribution: What it is called on PyPI.
        ask: Makes a job that returns the answer to "What is 1 + 2?".
        stream: Makes one that joins the pieces of a streamed answer.
    """
    url, repeat = sys.argv[1], int(sys.argv[2])
    jobs: dict[str, tuple[Job, Job, int]] = {}

    def add(name: str, path: str, inner: int, *, tools: bool, history: bool = False) -> None:
        by_hand = HandWritten(f"{url}/{path}", int(tools), HISTORY if history else None)
        jobs[name] = by_hand.acall, ask(f"{url}/{path}", tools, history), inner

    add("plain answer", "plain", 10, tools=False)
    add("20 tool rounds", "rounds/20", 2, tools=True)
    add("8 parallel calls", "parallel/8", 5, tools=True)
    add("5 rounds on 1,000 messages", "rounds/5", 1, tools=True, history=True)
    by_hand = HandWritten(f"{url}/stream/1000")
    jobs["stream of 1,000 chunks"] = by_hand.astream, stream(f"{url}/stream/1000", False, False), 2

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)

    def run(job: Job) -> Callable[[], str]:
        async def once() -> str:
            return await job()

        return lambda: loop.run_until_complete(once())

    ratios: dict[str, float] = {}
    for name, (hand, theirs, inner) in jobs.items():
        said = run(hand)(), run(theirs)()
        assert said[0] == said[1], (name, said)
        pairs = [(measure(run(hand), inner), measure(run(theirs), inner)) for _ in range(repeat)]
        ratios[name] = statistics.median(theirs / hand for hand, theirs in pairs)
    version = importlib.metadata.version(distribution)
    print(json.dumps({"version": version, "ratios": ratios}))
