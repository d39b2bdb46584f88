"""What the library costs beside a hand-written loop over httpx, in client CPU time.

    python benchmarks/overhead.py [--repeat 15] [--mode blocking|async]

A stub server runs in a process of its own. Each job is done by a loop as one would write it by
hand (httpx and json, nothing cached) and by a `ChatClient`, in turn; the medians of this process's
CPU time are compared, so that a busy machine disturbs both alike.
"""

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("CHATCLIENT_HTTP", "httpx")

import httpx
from stub_server import running

from chatclient import AssistantMessage, ChatClient, Message, UserMessage
from chatclient.providers.openai import OpenAIChatModel
from chatclient.tools import tool


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


SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "integer", "description": "The first."},
        "b": {"type": "integer", "description": "The second."},
    },
    "required": ["a", "b"],
    "additionalProperties": False,
}


def tool_json(name: str) -> dict[str, Any]:
    """Return a tool as the API wants it."""
    function = {"name": name, "description": "Add two numbers.", "parameters": SCHEMA}
    return {"type": "function", "function": function}


def many_tools(count: int) -> list[Any]:
    """Return *count* tools of different names."""
    from chatclient.tools import FunctionToolCallback

    return [FunctionToolCallback(add, name=f"add_{n}") for n in range(count - 1)] + [add]


HISTORY: list[Message] = [
    message
    for n in range(500)
    for message in (
        UserMessage(f"Question number {n}: what is {n} plus {n}? Please answer in a sentence."),
        AssistantMessage(f"The sum of {n} and {n} is {2 * n}, as one can easily see."),
    )
]
HISTORY_JSON = [{"role": m.role, "content": m.text} for m in HISTORY]


class HandWritten:
    """The loop as one would write it by hand."""

    def __init__(
        self, url: str, tools: int = 0, history: list[dict[str, Any]] | None = None
    ) -> None:
        self.url = f"{url}/chat/completions"
        self.tools = [tool_json(f"add_{n}") for n in range(tools - 1)] + [tool_json("add")]
        self.with_tools = bool(tools)
        self.history = history or []
        self.client = httpx.Client(timeout=60)
        self.async_client = httpx.AsyncClient(timeout=60)
        self.headers = {"Authorization": "Bearer test"}

    def body(self, messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """Return a request."""
        body: dict[str, Any] = {"model": "stub", "messages": messages, **more}
        if self.with_tools:
            body["tools"] = self.tools
        return body

    def start(self) -> list[dict[str, Any]]:
        """Return the conversation to begin with."""
        return [*self.history, {"role": "user", "content": "What is 1 + 2?"}]

    def take(self, messages: list[dict[str, Any]], data: dict[str, Any]) -> str | None:
        """Run the tools of an answer, or return its text."""
        message = data["choices"][0]["message"]
        messages.append(message)
        if not message.get("tool_calls"):
            return str(message["content"])
        for call in message["tool_calls"]:
            arguments = json.loads(call["function"]["arguments"])
            result = json.dumps(arguments["a"] + arguments["b"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        return None

    def call(self) -> str:
        """Ask until there is an answer."""
        messages = self.start()
        while True:
            body = self.body(messages)
            response = self.client.post(self.url, json=body, headers=self.headers)
            response.raise_for_status()
            answer = self.take(messages, response.json())
            if answer is not None:
                return answer

    async def acall(self) -> str:
        """Ask until there is an answer."""
        messages = self.start()
        while True:
            body = self.body(messages)
            response = await self.async_client.post(self.url, json=body, headers=self.headers)
            response.raise_for_status()
            answer = self.take(messages, response.json())
            if answer is not None:
                return answer

    def stream(self) -> str:
        """Join the pieces of a stream."""
        pieces: list[str] = []
        body = self.body(self.start(), stream=True)
        with self.client.stream("POST", self.url, json=body, headers=self.headers) as response:
            for line in response.iter_lines():
                self.read(line, pieces)
        return "".join(pieces)

    async def astream(self) -> str:
        """Join the pieces of a stream."""
        pieces: list[str] = []
        body = self.body(self.start(), stream=True)
        async with self.async_client.stream(
            "POST", self.url, json=body, headers=self.headers
        ) as response:
            async for line in response.aiter_lines():
                self.read(line, pieces)
        return "".join(pieces)

    def read(self, line: str, pieces: list[str]) -> None:
        """Take the text of one line of a stream."""
        if line.startswith("data: ") and line != "data: [DONE]":
            choices = json.loads(line[6:])["choices"]
            if choices and choices[0]["delta"].get("content"):
                pieces.append(choices[0]["delta"]["content"])


class Ours:
    """The same with a `ChatClient`."""

    def __init__(self, url: str, tools: list[Any], history: list[Message] | None = None) -> None:
        model = OpenAIChatModel("stub", api_key="test", base_url=url, timeout=60)
        builder = ChatClient.builder(model).default_tools(tools)
        self.client = builder.default_messages(*history or []).build()

    def call(self) -> str:
        """Ask until there is an answer."""
        return self.client.prompt("What is 1 + 2?").call().content()

    async def acall(self) -> str:
        """Ask until there is an answer."""
        return await self.client.prompt("What is 1 + 2?").acall().content()

    def stream(self) -> str:
        """Join the pieces of a stream."""
        return "".join(self.client.prompt("What is 1 + 2?").stream().content())

    async def astream(self) -> str:
        """Join the pieces of a stream."""
        pieces = self.client.prompt("What is 1 + 2?").astream().content()
        return "".join([piece async for piece in pieces])


def jobs(url: str, mode: str) -> dict[str, tuple[HandWritten, Ours, str, float]]:
    """Return what is measured: by hand, by us, which method, and the aim."""
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
            1.3,
        ),
        "5 rounds on 1,000 messages": (
            HandWritten(f"{url}/rounds/5", 1, HISTORY_JSON),
            Ours(f"{url}/rounds/5", [added], HISTORY),
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


def measure(one: Callable[[], Any], repeat: int) -> float:
    """Return the CPU seconds of one run, the mean of a few."""
    started = time.process_time()
    for _ in range(repeat):
        one()
    return (time.process_time() - started) / repeat


def compare(name: str, by_hand: Any, ours: Any, aim: float, repeat: int) -> None:
    """Measure both in turn and print a row."""
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
    parser.add_argument("--repeat", type=int, default=15)
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
