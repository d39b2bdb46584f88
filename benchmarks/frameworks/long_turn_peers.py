"""The turn of `long_turn.py` with Pydantic AI.

A function of `PEERS` gets the texts of the pages. It returns the parts of each prompt, all that the
last prompt shows, and the CPU time in seconds.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from pydantic_ai import Agent
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import UsageLimits

KEPT = 3


class Texts(Protocol):
    """Has the texts of pages."""

    texts: list[str]


Hold = Callable[[Texts], tuple[list[list[str]], str, float]]


def cleared(messages: list[ModelMessage]) -> list[ModelMessage]:
    """Return *messages* with all but the newest results replaced."""
    results = [at for at, m in enumerate(messages) if _has_result(m)]
    old = set(results[:-KEPT])
    return [_without_results(m) if at in old else m for at, m in enumerate(messages)]


def _has_result(message: ModelMessage) -> bool:
    return any(isinstance(part, ToolReturnPart) for part in message.parts)


def _without_results(message: ModelMessage) -> ModelMessage:
    assert isinstance(message, ModelRequest)
    parts = [
        ToolReturnPart(part.tool_name, "[removed]", part.tool_call_id)
        if isinstance(part, ToolReturnPart)
        else part
        for part in message.parts
    ]
    return replace(message, parts=parts)


def hold(pages: Texts) -> tuple[list[list[str]], str, float]:
    """Read all pages in one turn; a history processor replaces old results."""
    prompts: list[list[ModelMessage]] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        prompts.append(list(messages))
        at = len(prompts) - 1
        if at == len(pages.texts):
            return ModelResponse(parts=[TextPart("Done.")])
        return ModelResponse(parts=[ToolCallPart("read", {"page": at}, f"call_{at}")])

    agent = Agent(FunctionModel(answer), capabilities=[ProcessHistory(cleared)])

    @agent.tool_plain
    def read(page: int) -> str:
        """Read a page."""
        return pages.texts[page]

    started = time.process_time()
    agent.run_sync("Read all pages.", usage_limits=UsageLimits(request_limit=None))
    seconds = time.process_time() - started
    known: dict[int, str] = {}
    shown = [
        [
            known.setdefault(id(part), str(getattr(part, "content", part)))
            for message in prompt
            for part in message.parts
        ]
        for prompt in prompts
    ]
    return shown, "".join(shown[-1]), seconds


PEERS: dict[str, Hold] = {"Pydantic AI, newest three results": hold}
