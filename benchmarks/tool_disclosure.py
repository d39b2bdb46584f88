"""Tool search with found tools among the tools, and in the conversation, with the local model.

    python benchmarks/tool_disclosure.py [tools] [in_conversation] [--conversations 20] [--skip 0]

Each conversation has two tasks that need two different tools out of 60, and its own memory.
`right` counts the tasks in which the first call of a tool is that of the right tool, with the right
argument; `searches` are the searches for all tasks. `input` is the number of tokens in all
requests, and `cached` the share of their characters that lie in a beginning that was sent before in
the conversation: a tool, the system text or a message, as a whole or not at all.
"""

import argparse
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

from prompt_cache import Cache, pieces

from chatclient import (
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    Next,
    ToolCall,
    ToolContext,
)
from chatclient.advisors import MessageChatMemoryAdvisor, ToolSearchToolCallingAdvisor
from chatclient.memory import MessageWindowChatMemory
from chatclient.providers.local.model import LocalChatModel
from chatclient.tools import (
    DataToolCallback,
    ToolCallback,
    ToolDefinition,
    ToolExecution,
    ToolLimits,
    ToolMetadata,
)
from chatclient.tools.execution.manager import ToolCallingManager

Disclosure = Literal["tools", "in_conversation"]

VERBS = ("archive", "delete", "export", "share", "rename", "print")
THINGS = (
    *("invoice", "ticket", "playlist", "recipe", "contract", "survey", "backup", "lesson"),
    *("newsletter", "shipment"),
)
TASKS_EACH = 2
_SEARCH = "toolSearchTool"


def tool_of(verb: str, thing: str) -> ToolCallback:
    """Return a tool that takes the number of a thing; its result is the answer."""
    schema = {
        "type": "object",
        "properties": {"number": {"type": "integer", "description": f"The {thing}'s number."}},
        "required": ["number"],
    }
    definition = ToolDefinition(f"{verb}_{thing}", f"{verb.capitalize()}s one {thing}.", schema)

    def run(_call: ToolCall, _context: ToolContext) -> str:
        return f"The {thing} is done."

    return DataToolCallback(definition, run, ToolMetadata(return_direct=True))


def tasks(conversations: int) -> Iterator[list[tuple[str, str, int]]]:
    """Yield the tasks of each conversation: what the user says, the tool, and its argument."""
    draw = random.Random(7)
    for _ in range(conversations):
        chosen = draw.sample([(verb, thing) for verb in VERBS for thing in THINGS], TASKS_EACH)
        numbers = draw.sample(range(100, 1000), TASKS_EACH)
        yield [
            (f"Please {verb} {thing} number {number}.", f"{verb}_{thing}", number)
            for (verb, thing), number in zip(chosen, numbers, strict=True)
        ]


class Measured:
    """Counts what is sent to the model, and what of it could be cached."""

    order = 100_000

    def __init__(self) -> None:
        self.cache = Cache(counting=True, least=0)
        self.requests = self.tokens = 0

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Count a request and its tokens."""
        self.cache.send(pieces(request.prompt))
        response = await call_next(request)
        self.requests += 1
        self.tokens += response.chat_response.usage.input_tokens or 0
        return response


def is_right(executions: tuple[ToolExecution, ...], name: str, number: int) -> bool:
    """Return whether the first call of a tool is the one that is asked for."""
    calls = [each for each in executions if each.tool_call.name != _SEARCH]
    arguments: Any = f'"number":{number}'
    return bool(calls) and (
        calls[0].tool_call.name == name
        and not calls[0].is_error
        and arguments in calls[0].tool_call.arguments.replace(" ", "")
    )


@dataclass
class Form:
    """What was measured of one form."""

    disclosure: Disclosure
    measured: Measured = field(default_factory=Measured)
    right: int = 0
    asked: int = 0
    searches: int = 0
    seconds: float = 0.0

    def converse(self, model: Any, held: list[tuple[str, str, int]], until: float) -> None:
        """Hold a conversation, as far as there is time."""
        self.measured.cache.seen.clear()
        client = (
            ChatClient.builder(model)
            .default_system("You carry out what the user asks for, with tools.")
            .default_options(temperature=0.0, max_tokens=60)
            .default_tools([tool_of(verb, thing) for verb in VERBS for thing in THINGS])
            .tool_calling_manager(ToolCallingManager(limits=ToolLimits(max_rounds=5)))
            .default_advisors(
                ToolSearchToolCallingAdvisor(disclosure=self.disclosure, max_results=3),
                MessageChatMemoryAdvisor(MessageWindowChatMemory()),
                self.measured,
            )
            .build()
        )
        for text, name, number in held:
            started = time.monotonic()
            if started > until:
                return
            answer = client.prompt(text).conversation("c").call()
            answer.content()
            executions = answer.tool_executions()
            self.asked += 1
            self.right += is_right(executions, name, number)
            self.searches += sum(each.tool_call.name == _SEARCH for each in executions)
            self.seconds += time.monotonic() - started

    def __str__(self) -> str:
        cache = self.measured.cache
        return (
            f"{self.disclosure:16} {self.right:3} of {self.asked:3} {self.searches:9}"
            f" {self.measured.requests:9} {self.measured.tokens:8}"
            f" {cache.cached / max(cache.sent, 1):7.2f} {self.seconds:7.0f}"
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("forms", nargs="*", default=["tools", "in_conversation"])
    parser.add_argument("--conversations", type=int, default=20)
    parser.add_argument("--skip", type=int, default=0, help="how many were held before")
    parser.add_argument("--minutes", type=float, default=60.0)
    given = parser.parse_args()
    until = time.monotonic() + 60 * given.minutes
    forms = [Form(each) for each in given.forms]
    with LocalChatModel(n_ctx=8192) as model:
        for held in islice(tasks(given.conversations), given.skip, None):
            for form in forms:
                form.converse(model, held, until)
    columns = f"{'searches':>9} {'requests':>9} {'input':>8} {'cached':>7} {'seconds':>7}"
    print(f"{'form':16} {'right':>10} {columns}", *forms, sep="\n")


if __name__ == "__main__":
    main()
