"""The share of prompts that a provider can serve from its cache, over a long conversation.

    python benchmarks/prompt_cache.py [--turns 60] [--only WORD]

Each configuration holds the same conversation with a scripted model. A request is laid out in the
order in which providers cache it: tools, system text, messages. `cached` is the share of its
characters that lie in a beginning which was sent before, piece by piece: a tool, the system text or
a message is found in the cache as a whole or not at all. It is counted for the second half of the
conversation. `sent` is the number of characters in thousands in all requests of all turns.
"""

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from chatclient import (
    Advisor,
    AssistantMessage,
    ChatClient,
    ChatModel,
    Prompt,
    ToolCall,
    UserMessage,
    message_to_dict,
)
from chatclient.advisors import (
    ContextWindowAdvisor,
    MessageChatMemoryAdvisor,
    PromptChatMemoryAdvisor,
    SessionMemoryAdvisor,
    ToolSearchToolCallingAdvisor,
)
from chatclient.chat.messages import system_messages, without_system
from chatclient.memory import (
    ChatMemory,
    CompactionStrategy,
    InMemorySessionRepository,
    MessageWindowChatMemory,
    SessionChatMemory,
    SessionService,
    SlidingWindow,
    SummarizingChatMemory,
    TokenWindowChatMemory,
    TurnCountTrigger,
    TurnWindow,
)
from chatclient.testing import ScriptedModel
from chatclient.tools import FunctionToolCallback, KeywordToolIndex

SYSTEM = " ".join(["You help the customers of a shop, politely and with few words."] * 10)
WORDS = ("order", "parcel", "street", "colour", "refund", "invoice", "size", "stock", "price")
CHANGING = ("id", "stored_at", "metadata")  # not part of what a provider is sent


def text(seed: object, length: int) -> str:
    """Return a text of about *length* characters."""
    words = random.Random(str(seed))
    return " ".join(words.choice(WORDS) for _ in range(length // 6))


def tools(count: int) -> list[FunctionToolCallback]:
    """Return tools with results of a thousand characters."""

    def look_up(query: str) -> str:
        return text(query, 1000)

    return [
        FunctionToolCallback(
            look_up,
            name=f"look_up_{text(at, 12).replace(' ', '_')}_{at}",
            description=text(at, 150),
        )
        for at in range(count)
    ]


def pieces(prompt: Prompt) -> Iterator[str]:
    """Return the parts of a request, in the order in which providers cache them."""
    for callback in prompt.options.tool_callbacks or ():
        yield repr(callback.definition)
    for message in (*system_messages(prompt.messages), *without_system(prompt.messages)):
        yield repr({k: v for k, v in message_to_dict(message).items() if k not in CHANGING})


@dataclass
class Cache:
    """What was sent so far, and what could be cached of it."""

    seen: set[int] = field(default_factory=set)
    sent: int = 0
    cached: int = 0
    counting: bool = False
    total: int = 0

    def send(self, prompt: Prompt) -> None:
        """Count a request."""
        beginning, hit = 0, True
        for piece in pieces(prompt):
            beginning = hash((beginning, piece))
            hit = hit and beginning in self.seen
            self.seen.add(beginning)
            self.total += len(piece)
            if self.counting:
                self.sent += len(piece)
                self.cached += len(piece) if hit else 0


Configuration = Callable[[ChatModel], tuple[Sequence[Advisor], Sequence[FunctionToolCallback]]]


def remembering(
    memory: Callable[[ChatModel], ChatMemory],
    *more: Callable[[], Advisor],
    tool_count: int = 0,
    kind: Callable[..., Advisor] = MessageChatMemoryAdvisor,
) -> Configuration:
    """Return a configuration with a memory, other advisors and tools."""
    return lambda model: ([kind(memory(model)), *(make() for make in more)], tools(tool_count))


def sessions(turns: int, kept: CompactionStrategy) -> Callable[[ChatModel], ChatMemory]:
    """Return a session that is compacted."""
    return lambda _: SessionChatMemory(
        SessionService(InMemorySessionRepository()),
        trigger=TurnCountTrigger(turns),
        strategy=kept,
    )


def window(max_messages: int = 40, keep: int | None = None) -> Callable[[ChatModel], ChatMemory]:
    """Return a memory with a window of messages."""
    return lambda _: MessageWindowChatMemory(max_messages=max_messages, keep=keep)


def token_window(max_tokens: int) -> Callable[[ChatModel], ChatMemory]:
    """Return a memory with a window of tokens."""
    return lambda _: TokenWindowChatMemory(max_tokens=max_tokens)


everything = window(100_000)


def found_tools(_: ChatModel) -> tuple[Sequence[Advisor], Sequence[FunctionToolCallback]]:
    """Return a tool search over 60 tools, in a conversation that is remembered as a whole."""
    search = ToolSearchToolCallingAdvisor(KeywordToolIndex())
    return [MessageChatMemoryAdvisor(everything(_)), search], tools(60)


CONFIGURATIONS: dict[str, Configuration] = {
    "everything": remembering(everything),
    "window of 20, sliding": remembering(window(20, keep=20)),
    "window, by default": remembering(window()),
    "window of 100": remembering(window(100)),
    "window of 2,000 tokens": remembering(token_window(2000)),
    "window of 8,000 tokens": remembering(token_window(8000)),
    "tools, everything": remembering(everything, tool_count=12),
    "tools, window of 20, sliding": remembering(window(20, keep=20), tool_count=12),
    "tools, window by default": remembering(window(), tool_count=12),
    "tools, window of 100": remembering(window(100), tool_count=12),
    "tools, window of 2,000 tokens": remembering(token_window(2000), tool_count=12),
    "tools, window of 8,000 tokens": remembering(token_window(8000), tool_count=12),
    "tools, ContextWindowAdvisor(4000)": remembering(
        everything, lambda: ContextWindowAdvisor(4000), tool_count=12
    ),
    "tools, ContextWindowAdvisor(16000)": remembering(
        everything, lambda: ContextWindowAdvisor(16_000), tool_count=12
    ),
    "sessions, from 20 turns to 30 messages": remembering(
        sessions(20, SlidingWindow(30)), kind=SessionMemoryAdvisor
    ),
    "sessions, from 20 turns to 10": remembering(
        sessions(20, TurnWindow(10)), kind=SessionMemoryAdvisor
    ),
    "tools, sessions, from 20 turns to 10": remembering(
        sessions(20, TurnWindow(10)), kind=SessionMemoryAdvisor, tool_count=12
    ),
    "summaries": remembering(lambda _: SummarizingChatMemory(ScriptedModel(summary))),
    "memory in the system text": remembering(window(), kind=PromptChatMemoryAdvisor),
    "tool search": found_tools,
}


def summary(prompt: Prompt) -> str:
    """Return a summary."""
    return text(len(prompt.messages[-1].text), 800)


def converse(configuration: Configuration, turns: int) -> Cache:
    """Hold the conversation, and return what could be cached."""
    cache = Cache()

    def answer(prompt: Prompt) -> Any:
        cache.send(prompt)
        question = next(m.text for m in reversed(prompt.messages) if isinstance(m, UserMessage))
        names = [callback.definition.name for callback in prompt.options.tool_callbacks or ()]
        last = prompt.messages[-1]
        if not names or isinstance(last, AssistantMessage):
            return text(question, 500)
        done = sum(1 for _ in current_rounds(prompt))
        search = [name for name in names if "search" in name.lower()]
        if search and not done:
            return ToolCall(f"s{hash(question)}", search[0], f'{{"query": "{question[:60]}"}}')
        if done <= len(search):
            usable = [name for name in names if name not in search]
            if usable:
                name = usable[len(question) % len(usable)] if not search else usable[-1]
                return ToolCall(f"c{hash(question)}", name, f'{{"query": "{question[:20]}"}}')
        return text(question, 500)

    model = ScriptedModel(answer)
    advisors, callbacks = configuration(model)
    client = (
        ChatClient.builder(model)
        .default_system(SYSTEM)
        .default_tools(*callbacks)
        .default_advisors(*advisors)
        .build()
    )
    for turn in range(turns):
        cache.counting = turn >= turns // 2
        question = f"{turn}: {text((turn, 'question'), 200)}"
        client.prompt(question).conversation("c").call().content()
    return cache


def current_rounds(prompt: Prompt) -> Iterator[None]:
    """Return an item for each round of the current turn."""
    for message in reversed(prompt.messages):
        if isinstance(message, UserMessage):
            return
        if isinstance(message, AssistantMessage):
            yield None


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    print(f"{'configuration':42} {'cached':>6} {'sent':>7}")
    for name, configuration in CONFIGURATIONS.items():
        if given.only in name:
            cache = converse(configuration, given.turns)
            print(f"{name:42} {cache.cached / cache.sent:6.2f} {cache.total / 1000:7.0f}")


if __name__ == "__main__":
    main()
