"""Tool search with found tools among the tools, and in the conversation, with the local model.

    python benchmarks/tool_disclosure.py [tools] [in_conversation] [--minutes 15]

Each conversation has five tasks that need five different tools out of 60, and its own memory.
`right` counts the tasks in which the first call of a tool is that of the right tool, with the right
argument; `searches` are the searches for all tasks. `input` is the number of tokens in all
requests, and `cached` the share of their characters that lie in a beginning that was sent before in
the conversation: a tool, the system text or a message, as a whole or not at all.
"""

import argparse
import random
import time
from collections.abc import Iterator
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
TASKS_EACH = 5
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


def measure(model: Any, disclosure: Disclosure, conversations: int, until: float) -> str:
    """Return the line of one form."""
    measured, right, asked, searches, started = Measured(), 0, 0, 0, time.monotonic()
    for held in tasks(conversations):
        measured.cache.seen.clear()
        client = (
            ChatClient.builder(model)
            .default_system("You carry out what the user asks for, with tools.")
            .default_options(temperature=0.0, max_tokens=200)
            .default_tools([tool_of(verb, thing) for verb in VERBS for thing in THINGS])
            .tool_calling_manager(ToolCallingManager(limits=ToolLimits(max_rounds=5)))
            .default_advisors(
                ToolSearchToolCallingAdvisor(disclosure=disclosure, max_results=3),
                MessageChatMemoryAdvisor(MessageWindowChatMemory()),
                measured,
            )
            .build()
        )
        for text, name, number in held:
            if time.monotonic() > until:
                break
            answer = client.prompt(text).conversation("c").call()
            answer.content()
            executions = answer.tool_executions()
            asked += 1
            right += is_right(executions, name, number)
            searches += sum(each.tool_call.name == _SEARCH for each in executions)
    share = measured.cache.cached / max(measured.cache.sent, 1)
    seconds = time.monotonic() - started
    return (
        f"{disclosure:16} {right:3} of {asked:3} {searches:9} {measured.requests:9}"
        f" {measured.tokens:8} {share:7.2f} {seconds:7.0f}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("forms", nargs="*", default=["tools", "in_conversation"])
    parser.add_argument("--conversations", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=15.0)
    given = parser.parse_args()
    columns = f"{'searches':>9} {'requests':>9} {'input':>8} {'cached':>7} {'seconds':>7}"
    print(f"{'form':16} {'right':>10} {columns}")
    share = 60 * given.minutes / len(given.forms)
    with LocalChatModel(n_ctx=8192) as model:
        for form in given.forms:
            until = time.monotonic() + share
            print(measure(model, form, given.conversations, until), flush=True)


if __name__ == "__main__":
    main()
