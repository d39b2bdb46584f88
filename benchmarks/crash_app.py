"""The application of `crash.py`: a deterministic model, and tools that record their effects."""

import hashlib
import os
import random
import time

import psycopg

from chatclient import (
    AssistantMessage,
    ChatClient,
    ChatResponse,
    Prompt,
    Runtime,
    ToolCall,
    ToolContext,
    UserMessage,
    tool,
)
from chatclient.advisors import MessageChatMemoryAdvisor
from chatclient.durable import TurnQueue, durable
from chatclient.memory import MessageWindowChatMemory, SqlChatMemoryRepository
from chatclient.testing import ScriptedModel

EFFECTS = os.environ.get("CRASH_EFFECTS", "postgresql://postgres@127.0.0.1:5432/crash_effects")
MEMORY = os.environ.get("CRASH_MEMORY", "postgresql+psycopg://postgres@127.0.0.1:5432/crash_turns")
MODEL_SECONDS, TOOL_SECONDS = 0.1, 0.15
CALLS = [
    ["read"],
    ["read", "idempotent"],
    ["write"],
    ["read", "write", "idempotent"],
    ["idempotent"],
    ["read", "read", "write"],
]


def rounds_of(number: int) -> int:
    """Return how many model calls turn *number* makes, 1 to 8."""
    return 1 + number % 8


def calls_in(number: int, round: int) -> list[str]:
    """Return the tools that the model calls in a round of turn *number*."""
    digest = hashlib.sha256(f"{number}/{round}".encode()).digest()
    return CALLS[digest[0] % len(CALLS)]


def answer(prompt: Prompt) -> str | list[ToolCall | str | Exception]:
    """Return what the model says; it depends on the prompt only."""
    begin = max(at for at, each in enumerate(prompt.messages) if isinstance(each, UserMessage))
    number = int(prompt.messages[begin].text.split()[-1])
    round = sum(isinstance(each, AssistantMessage) for each in prompt.messages[begin:])
    if round + 1 >= rounds_of(number):
        return f"turn {number} is done"
    return [
        ToolCall(f"call-{round}-{at}", name, f'{{"turn": {number}, "step": "{round}.{at}"}}')
        for at, name in enumerate(calls_in(number, round))
    ]


class SlowModel(ScriptedModel):
    """A model that takes its time."""

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        """Return the answer."""
        await runtime.sleep(MODEL_SECONDS * random.uniform(0.5, 1.5))
        return await super().generate(prompt, runtime)


def record(kind: str, turn: int, step: str, key: str) -> None:
    """Take effect, in the middle of some time."""
    time.sleep(TOOL_SECONDS * random.random())
    with psycopg.connect(EFFECTS, autocommit=True) as connection:
        connection.execute(
            "insert into effects (kind, turn, step, key) values (%s, %s, %s, %s)",
            (kind, turn, step, key),
        )
    time.sleep(TOOL_SECONDS * random.random())


@tool(effect="read")
def read(turn: int, step: str, context: ToolContext) -> str:
    """Look something up."""
    record("read", turn, step, context.idempotency_key)
    return f"read {step}"


@tool(effect="idempotent")
def idempotent(turn: int, step: str, context: ToolContext) -> str:
    """Set something."""
    record("idempotent", turn, step, context.idempotency_key)
    return f"set {step}"


@tool
def write(turn: int, step: str, context: ToolContext) -> str:
    """Book something."""
    record("write", turn, step, context.idempotency_key)
    return f"booked {step}"


repository = SqlChatMemoryRepository(MEMORY)
client = (
    ChatClient.builder(SlowModel(answer))
    .default_tools(read, idempotent, write)
    .default_advisors(MessageChatMemoryAdvisor(MessageWindowChatMemory(repository)))
    .build()
)
shop = durable(client, name="shop")
clients = [shop, TurnQueue("shop", worker_concurrency=6)]
