"""The jobs with the OpenAI Agents SDK, its own tracing switched off."""

from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from jobs import HISTORY, Job, compare
from openai import AsyncOpenAI
from openai.types.responses import ResponseTextDeltaEvent

set_tracing_disabled(True)


@function_tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def agent_of(url: str, tools: bool) -> Any:
    """Return an agent."""
    model = OpenAIChatCompletionsModel("stub", AsyncOpenAI(base_url=url, api_key="test"))
    settings = ModelSettings(include_usage=False)
    return Agent("a", model=model, tools=[add] if tools else [], model_settings=settings)


def asked(history: bool) -> list[Any]:
    """Return the input of the agent."""
    return [*(HISTORY if history else []), {"role": "user", "content": "What is 1 + 2?"}]


def ask(url: str, tools: bool, history: bool) -> Job:
    """Return a function that sends a request."""
    agent = agent_of(url, tools)

    async def answered() -> str:
        return str((await Runner.run(agent, asked(history), max_turns=100)).final_output)

    return answered


def stream(url: str, tools: bool, history: bool) -> Job:
    """Return a function that streams an answer."""
    agent = agent_of(url, tools)

    async def streamed() -> str:
        result = Runner.run_streamed(agent, asked(history))
        pieces = [
            event.data.delta
            async for event in result.stream_events()
            if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent)
        ]
        return "".join(pieces)

    return streamed


if __name__ == "__main__":
    compare("openai-agents", ask, stream)
