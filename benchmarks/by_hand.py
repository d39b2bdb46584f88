"""A hand-written tool loop over httpx: the reference of all benchmarks."""

import json
import time
from collections.abc import Callable
from typing import Any

import httpx

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
    """Return a tool in the format of the API."""
    function = {"name": name, "description": "Add two numbers.", "parameters": SCHEMA}
    return {"type": "function", "function": function}


HISTORY: list[dict[str, Any]] = [
    message
    for n in range(500)
    for message in (
        {
            "role": "user",
            "content": f"Question number {n}: what is {n} plus {n}? Please answer in a sentence.",
        },
        {
            "role": "assistant",
            "content": f"The sum of {n} and {n} is {2 * n}, as one can easily see.",
        },
    )
]


class HandWritten:
    """A hand-written tool loop."""

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
        """Return the body of a request."""
        body: dict[str, Any] = {"model": "stub", "messages": messages, **more}
        if self.with_tools:
            body["tools"] = self.tools
        return body

    def start(self) -> list[dict[str, Any]]:
        """Return the initial messages."""
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
        """Run the loop and return the answer."""
        messages = self.start()
        while True:
            body = self.body(messages)
            response = self.client.post(self.url, json=body, headers=self.headers)
            response.raise_for_status()
            answer = self.take(messages, response.json())
            if answer is not None:
                return answer

    async def acall(self) -> str:
        """Run the loop and return the answer."""
        messages = self.start()
        while True:
            body = self.body(messages)
            response = await self.async_client.post(self.url, json=body, headers=self.headers)
            response.raise_for_status()
            answer = self.take(messages, response.json())
            if answer is not None:
                return answer

    def stream(self) -> str:
        """Return the text of a stream."""
        pieces: list[str] = []
        body = self.body(self.start(), stream=True)
        with self.client.stream("POST", self.url, json=body, headers=self.headers) as response:
            for line in response.iter_lines():
                self.read(line, pieces)
        return "".join(pieces)

    async def astream(self) -> str:
        """Return the text of a stream."""
        pieces: list[str] = []
        body = self.body(self.start(), stream=True)
        async with self.async_client.stream(
            "POST", self.url, json=body, headers=self.headers
        ) as response:
            async for line in response.aiter_lines():
                self.read(line, pieces)
        return "".join(pieces)

    def read(self, line: str, pieces: list[str]) -> None:
        """Return the text in one line of a stream."""
        if line.startswith("data: ") and line != "data: [DONE]":
            choices = json.loads(line[6:])["choices"]
            if choices and choices[0]["delta"].get("content"):
                pieces.append(choices[0]["delta"]["content"])


def measure(one: Callable[[], Any], repeat: int) -> float:
    """Return the mean CPU seconds of a run."""
    started = time.process_time()
    for _ in range(repeat):
        one()
    return (time.process_time() - started) / repeat
