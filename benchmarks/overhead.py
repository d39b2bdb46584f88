"""CPU time of the client, as a ratio to a hand-written loop over httpx.

    python benchmarks/overhead.py [--repeat 31] [--mode blocking|async]

A stub server runs in a process of its own. Each job is done by a loop as one would write it by
hand (httpx and json, nothing cached) and by a `ChatClient`, in turn; the medians of this process's
CPU time are compared, so that a busy machine disturbs both alike.
"""

import argparse
import asyncio
import os
import statistics
from typing import Any

os.environ.setdefault("CHATCLIENT_HTTP", "httpx")

from by_hand import HISTORY, HandWritten, measure
from stub_server import running

from chatclient import AssistantMessage, ChatClient, Message, UserMessage, tool
from chatclient.providers import OpenAIChatModel


@tool
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


@tool(name="add")
async def add_async(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


def many_tools(count: int) -> list[Any]:
    """Return *count* tools of different names."""
    from chatclient.tools import FunctionToolCallback

    return [FunctionToolCallback(add, name=f"add_{n}") for n in range(count - 1)] + [add]


HISTORY_BY_US: list[Message] = [
    UserMessage(m["content"]) if m["role"] == "user" else AssistantMessage(m["content"])
    for m in HISTORY
]


class Ours:
    """The same with a `ChatClient`."""

    def __init__(self, url: str, tools: list[Any], history: list[Message] | None = None) -> None:
        model = OpenAIChatModel("stub", api_key="test", base_url=url, timeout=60)
        builder = ChatClient.builder(model).default_tools(tools)
        self.client = builder.default_messages(*history or []).build()

    def call(self) -> str:
        """Run the request and return the answer."""
        return self.client.prompt("What is 1 + 2?").call().content()

    async def acall(self) -> str:
        """Run the request and return the answer."""
        return await self.client.prompt("What is 1 + 2?").acall().content()

    def stream(self) -> str:
        """Return the text of a stream."""
        return "".join(self.client.prompt("What is 1 + 2?").stream().content())

    async def astream(self) -> str:
        """Return the text of a stream."""
        pieces = self.client.prompt("What is 1 + 2?").astream().content()
        return "".join([piece async for piece in pieces])


def jobs(url: str, mode: str) -> dict[str, tuple[HandWritten, Ours, str, float]]:
    """Return the jobs: reference, client, method and target."""
    added = add if mode == "blocking" else add_async
    many = many_tools(200) if mode == "blocking" else [*many_tools(200)[:-1], add_async]
    ask, stream = ("call", "stream") if mode == "blocking" else ("acall", "astream")
    return {
        "plain answer": (HandWritten(f"{url}/plain"), Ours(f"{url}/plain", []), ask, 1.15),
        "20 tool rounds": (
            HandWritten(f"{url}/rounds/20", 1),
            Ours(f"{url}/rounds/20", [added]),
            ask,
            1.0,
        ),
        "8 parallel calls": (
            HandWritten(f"{url}/parallel/8", 1),
            Ours(f"{url}/parallel/8", [added]),
            ask,
            1.15,
        ),
        "stream of 1,000 chunks": (
            HandWritten(f"{url}/stream/1000"),
            Ours(f"{url}/stream/1000", []),
            stream,
            1.1,
        ),
        "5 rounds on 1,000 messages": (
            HandWritten(f"{url}/rounds/5", 1, HISTORY),
            Ours(f"{url}/rounds/5", [added], HISTORY_BY_US),
            ask,
            0.6,
        ),
        "200 registered tools": (
            HandWritten(f"{url}/rounds/5", 200),
            Ours(f"{url}/rounds/5", many),
            ask,
            0.6,
        ),
    }


def compare(name: str, by_hand: Any, ours: Any, aim: float, repeat: int) -> None:
    """Measure reference and client alternately and print a row."""
    inner = 3 if "rounds" in name or "1,000" in name or "200" in name else 20
    assert by_hand() == ours(), name
    pairs = [(measure(by_hand, inner), measure(ours, inner)) for _ in range(repeat)]
    hand = statistics.median(pair[0] for pair in pairs)
    mine = statistics.median(pair[1] for pair in pairs)
    ratio = statistics.median(pair[1] / pair[0] for pair in pairs)
    mark = "ok" if ratio <= aim else "over"
    print(
        f"{name:28} {hand * 1e3:9.3f} ms {mine * 1e3:9.3f} ms {ratio:7.2f} {aim:7.2f} {mark}",
        flush=True,
    )


def main() -> None:
    """Print a row for each job."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=31)
    parser.add_argument("--mode", choices=["blocking", "async"], default="blocking")
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    print(f"{'job':28} {'by hand':>12} {'chatclient':>12} {'ratio':>7} {'aim':>7}")
    with running() as url:
        loop = asyncio.new_event_loop()
        for name, (hand, ours, method, aim) in jobs(url, arguments.mode).items():
            if arguments.only not in name:
                continue
            one, other = getattr(hand, method), getattr(ours, method)
            if arguments.mode == "async":
                compare(
                    name,
                    lambda one=one: loop.run_until_complete(one()),
                    lambda other=other: loop.run_until_complete(other()),
                    aim,
                    arguments.repeat,
                )
            else:
                compare(name, one, other, aim, arguments.repeat)
        loop.close()


if __name__ == "__main__":
    main()
