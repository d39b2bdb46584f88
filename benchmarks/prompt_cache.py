"""The share of prompts that a provider can serve from its cache, over a long conversation.

    python benchmarks/prompt_cache.py [conversations] [marks] [--turns 60] [--only WORD]

Without a name, both parts run.

Each configuration holds the same conversation with a scripted model. A request is laid out in the
order in which providers cache it: tools, system text, messages. `cached` is the share of its
characters that lie in a beginning which was sent before, piece by piece: a tool, the system text or
a message is found in the cache as a whole or not at all. It is counted for the second half of the
conversation. `sent` is the number of tokens in thousands in all requests of all turns, at four
characters each, and the prices are in US cents for all turns, with answers. A beginning of less
than 1,024 tokens is not cached. Pydantic AI, LangChain and the OpenAI Agents SDK hold the
conversation without tools, with their own means, if they are installed.

`marks` compares what Claude costs with marks for its cache: never, as the option `cache="auto"`
sets them, and at the end of each request.
"""

import argparse
import importlib
import importlib.util
import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import genai_prices

from chatclient import (
    Advisor,
    AssistantMessage,
    ChatClient,
    ChatModel,
    ChatResponse,
    Prompt,
    Runtime,
    ToolCall,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.advisors import (
    ContextWindowAdvisor,
    GuardrailResult,
    MessageChatMemoryAdvisor,
    OutputGuardrailAdvisor,
    PromptChatMemoryAdvisor,
    RetrievalAugmentationAdvisor,
    SessionMemoryAdvisor,
    ToolSearchToolCallingAdvisor,
)
from chatclient.chain.calls_by_name import CALL_TOOL
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
from chatclient.observability.prefix import prompt_pieces
from chatclient.providers.wire.common_options import ends_conversation
from chatclient.retrieval import Document, Query
from chatclient.testing import ScriptedModel
from chatclient.tools import FunctionToolCallback
from chatclient.tools.search import KeywordToolIndex

SYSTEM = " ".join(["You help the customers of a shop, politely and with few words."] * 10)
WORDS = ("order", "parcel", "street", "colour", "refund", "invoice", "size", "stock", "price")
MODELS = (
    ("anthropic", "claude-sonnet-4-5"),
    ("openai", "gpt-5-mini"),
    ("google", "gemini-2.5-pro"),
)
ANSWER = 500  # characters of an answer
LEAST = 4 * 1024  # characters that a provider caches


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


@dataclass
class Cache:
    """What was sent so far, and what could be cached of it, in characters."""

    least: int = LEAST
    seen: set[int] = field(default_factory=set)
    sent: int = 0
    cached: int = 0
    counting: bool = False
    requests: list[tuple[int, int, int]] = field(default_factory=list)

    def send(self, pieces: Iterable[str], *, marked: int | None = None) -> None:
        """Count a request.

        Args:
            pieces: Its parts, in the order in which providers cache them.
            marked: How many of them are written to the cache; None for all.
        """
        beginning, hit, size, found, written = 0, True, 0, 0, 0
        for number, piece in enumerate(pieces):
            beginning = hash((beginning, piece))
            size += len(piece)
            hit = hit and beginning in self.seen
            found = size if hit else found
            if marked is None or number < marked:
                self.seen.add(beginning)
                written = size
        found = found if found >= self.least else 0
        written = max(written - found, 0) if written >= self.least else 0
        self.requests.append((size, found, written))
        if self.counting:
            self.sent += size
            self.cached += found

    def cents(self, provider: str, model: str, answers: int) -> float:
        """Return the price of all requests and of *answers*, a number of characters."""
        sizes, found, written = (sum(each) // 4 for each in zip(*self.requests, strict=True))
        writes = written if provider == "anthropic" else None
        usage = genai_prices.Usage(
            input_tokens=sizes,
            cache_read_tokens=found,
            cache_write_tokens=writes,
            output_tokens=answers // 4,
        )
        price = genai_prices.calc_price(usage, model, provider_id=provider).total_price
        return 100 * float(price)


def pieces(prompt: Prompt) -> list[str]:
    """Return the parts of a request."""
    return [piece.text for piece in prompt_pieces(prompt)]


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


def documents(query: Query, _runtime: Runtime) -> list[Document]:
    """Return documents of two thousand characters for a question."""
    return [Document(text((query.text, at), 500)) for at in range(4)]


def longer(answer: ChatResponse) -> GuardrailResult | None:
    """Ask again for every third question."""
    return GuardrailResult.reprompt("short", "Longer!") if len(answer.text) % 3 == 0 else None


def found_tools(disclosure: Literal["tools", "in_conversation"]) -> Configuration:
    """Return a tool search over 60 tools, in a conversation that is remembered as a whole."""

    def configured(_: ChatModel) -> tuple[Sequence[Advisor], Sequence[FunctionToolCallback]]:
        search = ToolSearchToolCallingAdvisor(KeywordToolIndex(), disclosure=disclosure)
        return [MessageChatMemoryAdvisor(everything(_)), search], tools(60)

    return configured


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
    "tool search": found_tools("tools"),
    "tool search, in_conversation": found_tools("in_conversation"),
    "documents for each question, everything": remembering(
        everything, lambda: RetrievalAugmentationAdvisor(documents)
    ),
    "a guardrail that asks again, everything": remembering(
        everything, lambda: OutputGuardrailAdvisor(longer)
    ),
}


def summary(prompt: Prompt) -> str:
    """Return a summary."""
    return text(len(prompt.messages[-1].text), 800)


def converse(configuration: Configuration, turns: int) -> Cache:
    """Hold the conversation, and return what could be cached."""
    cache = Cache()
    client = client_of(configuration, lambda prompt: cache.send(pieces(prompt)))
    for turn in range(turns):
        cache.counting = turn >= turns // 2
        client.prompt(question(turn)).conversation("c").call().content()
    return cache


def question(turn: int, size: int = 200) -> str:
    """Return what the user says, in about *size* characters."""
    return f"{turn}: {text((turn, 'question'), size)}"


def client_of(configuration: Configuration, sent: Callable[[Prompt], None]) -> ChatClient:
    """Return a client whose model answers from a script, and passes its prompts to *sent*."""

    def answer(prompt: Prompt) -> Any:
        sent(prompt)
        asked = next(m.text for m in reversed(prompt.messages) if isinstance(m, UserMessage))
        names = [callback.definition.name for callback in prompt.options.tool_callbacks or ()]
        last = prompt.messages[-1]
        if not names or isinstance(last, AssistantMessage):
            return text(asked, ANSWER)
        done = sum(1 for _ in current_rounds(prompt))
        search = [name for name in names if "search" in name.lower()]
        if search and not done:
            return ToolCall(f"s{hash(asked)}", search[0], f'{{"query": "{asked[:60]}"}}')
        if done <= len(search):
            usable = found_names(prompt) if search else names
            if usable:
                name, given = usable[len(asked) % len(usable)], f'{{"query": "{asked[:20]}"}}'
                if name not in names:
                    name, given = CALL_TOOL, f'{{"name": "{name}", "arguments": {given}}}'
                return ToolCall(f"c{hash(asked)}", name, given)
        return text(asked, ANSWER)

    model = ScriptedModel(answer)
    advisors, callbacks = configuration(model)
    return (
        ChatClient.builder(model)
        .default_system(SYSTEM)
        .default_tools(*callbacks)
        .default_advisors(*advisors)
        .build()
    )


def found_names(prompt: Prompt) -> list[str]:
    """Return the names of the tools that the last search has found."""
    last = prompt.messages[-1]
    assert isinstance(last, ToolResponseMessage)
    tools = json.loads(last.responses[0].data)["tools"]
    return [tool if isinstance(tool, str) else tool["name"] for tool in tools]


def current_rounds(prompt: Prompt) -> Iterator[None]:
    """Return an item for each round of the current turn."""
    for message in reversed(prompt.messages):
        if isinstance(message, UserMessage):
            return
        if isinstance(message, AssistantMessage):
            yield None


def conversations(turns: int, only: str) -> None:
    """Print the share that could be cached, and what the conversations cost."""
    print(
        f"{'configuration':42} {'cached':>6} {'sent':>6} " + " ".join(f"{m:>17}" for _, m in MODELS)
    )
    made: dict[str, Callable[[], Cache]] = {
        name: partial(converse, configuration, turns)
        for name, configuration in CONFIGURATIONS.items()
    }
    if all(map(importlib.util.find_spec, ("pydantic_ai", "langchain_core", "agents"))):
        peers = importlib.import_module("frameworks.prompt_cache_peers").PEERS
        asked = [question(turn) for turn in range(turns)]
        answers = [text(each, ANSWER) for each in asked]
        made |= {name: partial(held, hold, asked, answers) for name, hold in peers.items()}
    for name, make in made.items():
        if only in name:
            cache = make()
            sent = sum(size for size, _, _ in cache.requests) / 4000
            prices = (f"{cache.cents(*model, turns * ANSWER):17.1f}" for model in MODELS)
            print(f"{name:42} {cache.cached / cache.sent:6.2f} {sent:6.0f} " + " ".join(prices))


def held(hold: Any, asked: list[str], answers: list[str]) -> Cache:
    """Hold the conversation with another framework, and return what could be cached."""
    cache = Cache()

    def send(turn: int, sent: Iterable[str]) -> None:
        cache.counting = turn >= len(asked) // 2
        cache.send(sent)

    hold(SYSTEM, asked, answers, send)
    return cache


CASES: dict[str, tuple[Configuration, int, int]] = {
    "one question": (remembering(everything), 1, 200),
    "one question, 8 KB": (remembering(everything), 1, 8000),
    "one question, tools": (remembering(everything, tool_count=12), 1, 200),
    "3 turns": (remembering(window()), 3, 200),
    "3 turns, 8 KB each": (remembering(window()), 3, 8000),
    "10 turns": (remembering(window()), 10, 200),
    "60 turns": (remembering(window()), 60, 200),
    "10 turns, tools": (remembering(window(), tool_count=12), 10, 200),
}


def marks() -> None:
    """Print what Claude costs with marks of three kinds, for twenty users one after another."""
    print(f"\n{'20 users, in cents':24} {'never':>8} {'auto':>8} {'always':>8}")
    for name, (configuration, turns, size) in CASES.items():
        sent: list[Prompt] = []
        for user in range(20):
            client = client_of(configuration, sent.append)
            for turn in range(turns):
                asked = f"{user}, {question(turn, size)}"
                client.prompt(asked).conversation("c").call().content()
        shown = []
        for policy in ("never", "auto", "always"):
            cache = Cache()
            for prompt in sent:
                kinds = [piece.kind for piece in prompt_pieces(prompt)]
                auto = prompt.options.mutate(cache="auto")
                ends = ends_conversation(Prompt(prompt.messages, auto), 0) or policy == "always"
                marked = len(kinds) if ends else len(kinds) - kinds.count("message")
                cache.send(pieces(prompt), marked=0 if policy == "never" else marked)
            shown.append(cache.cents(*MODELS[0], 20 * turns * ANSWER))
        print(f"{name:24} " + " ".join(f"{each:8.1f}" for each in shown))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", default=["conversations", "marks"])
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    if "conversations" in given.parts:
        conversations(given.turns, given.only)
    if "marks" in given.parts:
        marks()


if __name__ == "__main__":
    main()
