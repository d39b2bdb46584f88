"""One turn with many more tool results than fit into the model's window.

    python benchmarks/long_turn.py [--rounds 500] [--size 20000] [--window 32000] [--no-peers]

A scripted model reads one page in each round. Each page contains a fact. Then it needs the facts of
fifty pages, five in each round, and answers. The window is in tokens of four characters.

`largest` is the largest prompt in tokens. `cached` is the share of all prompts that is the same as
the beginning of the prompt before, tool by tool and message by message. `facts` is how many of the
facts are in the results of the last rounds. `rebuilt` is how many of twenty prompts are the same if
another client gets the messages of the turn up to there. `CPU` is the time of the process for a
quarter, half and all of the rounds, with the scripted model.

Pydantic AI holds the same turn with a history processor that replaces all but the newest three
results. There is no tool to read them again, so it has the facts that the last prompt shows.
"""

import argparse
import importlib.util
import itertools
import json
import random
import time
from collections.abc import Iterable, Sequence

from chatclient import AssistantMessage, ChatClient, Message, Prompt, ToolResponseMessage, tool
from chatclient.advisors import ContextWindowAdvisor
from chatclient.testing import ScriptedModel, call
from chatclient.tools import ToolCallingManager, ToolLimits

FACTS = 50
UNLIMITED = ToolLimits(max_rounds=None, max_calls_per_tool=None, max_total_calls=None)


class Pages:
    """Pages of random text, each with a fact."""

    def __init__(self, count: int, size: int) -> None:
        self.texts: list[str] = []
        self.facts: list[str] = []
        for number in range(count):
            source = random.Random(number)
            words = [f"{source.getrandbits(32):08x}" for _ in range(size // 9)]
            self.facts.append(f"key of page {number} is {words[0]}{words[1]}")
            words.insert(source.randrange(len(words)), f"The {self.facts[-1]}.")
            self.texts.append(" ".join(words))

    def needed(self) -> list[int]:
        """Return the pages whose facts the answer needs."""
        return list(range(0, len(self.texts), max(len(self.texts) // FACTS, 1)))[:FACTS]


def report(
    name: str, prompts: Sequence[Sequence[str]], facts: int, needed: int, cpu: Iterable[float]
) -> str:
    """Return a line of the table for *prompts*, each as the texts of its parts."""
    cached = total = largest = 0
    for before, prompt in itertools.pairwise([[], *prompts]):
        same = itertools.takewhile(
            lambda both: both[0] == both[1], zip(before, prompt, strict=False)
        )
        cached += sum(len(text) for text, _ in same)
        size = sum(map(len, prompt))
        total, largest = total + size, max(largest, size)
    seconds = " ".join(f"{each:6.2f}" for each in cpu)
    return f"{name:34} {largest / 4:9,.0f} {cached / total:7.2f} {facts:4}/{needed} {seconds}"


def parts(prompt: Prompt) -> list[str]:
    """Return the parts of *prompt* in the order in which providers cache them."""
    tools = [json.dumps(each.definition.to_json()) for each in prompt.options.tool_callbacks or ()]
    return [*tools, *map(shown, prompt.messages)]


def shown(message: Message) -> str:
    """Return what a model sees of *message*."""
    if isinstance(message, ToolResponseMessage):
        return "".join(f"{each.id} {each.data}" for each in message.responses)
    calls = message.tool_calls if isinstance(message, AssistantMessage) else ()
    return message.text + "".join(f"{each.id} {each.name} {each.arguments}" for each in calls)


def client_of(model: ScriptedModel, pages: Pages, window: int) -> ChatClient:
    """Return a client that reads *pages*."""

    @tool(effect="read")
    def read(page: int) -> str:
        """Read a page."""
        return pages.texts[page]

    builder = ChatClient.builder(model).default_tools(read)
    builder = builder.tool_calling_manager(ToolCallingManager(limits=UNLIMITED))
    return builder.default_advisors(ContextWindowAdvisor(window)).build()


def ours(pages: Pages, window: int) -> tuple[list[list[str]], int, float, int]:
    """Return the prompts of the turn, the facts found, the CPU time, and the prompts rebuilt."""
    reads = [call("read", {"page": at}, id=f"call_{at}") for at in range(len(pages.texts))]
    needed = pages.needed()
    searches = [
        [
            call("read_tool_result", {"query": f"key of page {at} is"}, id=f"search_{at}")
            for at in needed[first : first + 5]
        ]
        for first in range(0, len(needed), 5)
    ]
    model = ScriptedModel(*reads, *searches, "Done.")
    client = client_of(model, pages, window)
    started = time.process_time()
    answer = client.prompt("Read all pages, then find the keys.").call()
    assert answer.content() == "Done."
    seconds = time.process_time() - started

    seen = "".join(
        shown(message) for prompt in model.prompts[-len(searches) :] for message in prompt.messages
    )
    found = sum(pages.facts[at] in seen for at in needed)
    turn = answer.chat_client_response().turn
    rebuilt = 0
    messages = turn.messages()
    for at in range(0, len(reads), max(len(reads) // 20, 1)):
        again = ScriptedModel("Done.")
        client_of(again, pages, window).prompt(messages[: 1 + 2 * at]).call().content()
        rebuilt += again.prompts[0].messages == model.prompts[at].messages
    return [parts(prompt) for prompt in model.prompts], found, seconds, rebuilt


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--size", type=int, default=20_000)
    parser.add_argument("--window", type=int, default=32_000)
    parser.add_argument("--no-peers", action="store_true")
    given = parser.parse_args()
    counts = [given.rounds // 4, given.rounds // 2, given.rounds]
    print(f"{'':34} {'largest':>9} {'cached':>7} {'facts':>7} {'CPU':>6}")
    runs = [ours(Pages(count, given.size), given.window) for count in counts]
    prompts, found, _, rebuilt = runs[-1]
    needed = len(Pages(given.rounds, 18).needed())
    print(report("chatclient", prompts, found, needed, [run[2] for run in runs]))
    print(f"rebuilt: {rebuilt} of 20")
    if given.no_peers or importlib.util.find_spec("pydantic_ai") is None:
        return
    from frameworks.long_turn_peers import PEERS

    for name, hold in PEERS.items():
        held = [hold(Pages(count, given.size)) for count in counts]
        sent, last, _ = held[-1]
        pages = Pages(given.rounds, given.size)
        found = sum(pages.facts[at] in last for at in pages.needed())
        print(report(name, sent, found, needed, [each[2] for each in held]))


if __name__ == "__main__":
    main()
