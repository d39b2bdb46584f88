"""The conversation of `prompt_cache.py` with other frameworks, each with its own means.

A function of `PEERS` gets the system text, what the user says, the answers, and a function to which
it passes the number of the turn and the parts of each request.
"""

import importlib.util
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from agents import (
    Agent as OpenAIAgent,
    Model,
    ModelResponse,
    RunConfig,
    Runner,
    SessionSettings,
    SQLiteSession,
    Usage,
)
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    trim_messages,
)
from langchain_core.outputs import ChatGeneration, ChatResult
from openai.types.responses import ResponseOutputMessage, ResponseOutputText
from pydantic_ai import Agent
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import ModelMessage, ModelResponse as PydanticResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

Send = Callable[[int, Iterable[str]], None]
Hold = Callable[[str, list[str], list[str], Send], None]

HAS_AGENTS = all(map(importlib.util.find_spec, ("langchain", "langgraph")))
"""Whether LangChain's agents are installed, which are a package of their own."""


def summary_of(seed: str) -> str:
    """Return a summary of 800 characters."""
    return (f"Summary {seed}. " * 100)[:800]


def pydantic_ai(
    most: int | None, system: str, asked: list[str], answers: list[str], send: Send
) -> None:
    """Pass the earlier messages on; a history processor keeps the newest."""
    turn = 0

    def answer(messages: list[ModelMessage], info: AgentInfo) -> PydanticResponse:
        parts = [repr(getattr(part, "content", part)) for m in messages for part in m.parts]
        send(turn, [str(info.instructions), *parts])
        return PydanticResponse(parts=[TextPart(answers[turn])])

    def newest(messages: list[ModelMessage]) -> list[ModelMessage]:
        # The running turn begins with a request, so an odd number begins with a question.
        return messages if most is None else messages[-(most + 1) :]

    agent = Agent(FunctionModel(answer), instructions=system, capabilities=[ProcessHistory(newest)])
    history: list[ModelMessage] = []
    for turn, text in enumerate(asked):  # noqa: B007 - read by the model
        history = agent.run_sync(text, message_history=history).all_messages()


def langchain(
    most: int | None, system: str, asked: list[str], answers: list[str], send: Send
) -> None:
    """Keep the messages in a list, and trim it before each request."""
    history: list[BaseMessage] = [SystemMessage(system)]
    for turn, text in enumerate(asked):
        history.append(HumanMessage(text))
        shown = history
        if most is not None:
            shown = trim_messages(
                history,
                max_tokens=most + 2,
                token_counter=len,
                strategy="last",
                start_on="human",
                include_system=True,
            )
        send(turn, [str(message.content) for message in shown])
        history.append(AIMessage(answers[turn]))


def langchain_summaries(system: str, asked: list[str], answers: list[str], send: Send) -> None:
    """Let an agent's middleware summarize from 40 messages on, and keep 20, its default."""
    agents = importlib.import_module("langchain.agents")
    middleware = importlib.import_module("langchain.agents.middleware")
    memory = importlib.import_module("langgraph.checkpoint.memory")
    turn = 0

    def answer(messages: list[BaseMessage]) -> str:
        send(turn, [str(message.content) for message in messages])
        return answers[turn]

    summaries = middleware.SummarizationMiddleware(
        _ScriptedChat(answer=lambda messages: summary_of(str(len(str(messages[-1].content))))),
        trigger=("messages", 40),
    )
    agent = agents.create_agent(
        _ScriptedChat(answer=answer),
        system_prompt=system,
        middleware=[summaries],
        checkpointer=memory.InMemorySaver(),
    )
    thread: Any = {"configurable": {"thread_id": "c"}}
    for turn, text in enumerate(asked):  # noqa: B007 - read by the model
        agent.invoke({"messages": [HumanMessage(text)]}, thread)


class _ScriptedChat(BaseChatModel):
    """Answers from a script."""

    answer: Callable[[list[BaseMessage]], str]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, messages: list[BaseMessage], *_args: Any, **_more: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(self.answer(messages)))])


class _Scripted(Model):
    """Answers from a script."""

    def __init__(self, answer: Callable[[list[str]], str]) -> None:
        self.answer = answer

    async def get_response(
        self, system_instructions: Any, input: Any, *_args: Any, **_more: Any
    ) -> ModelResponse:
        items = [input] if isinstance(input, str) else input
        sent = [repr(item.get("content") if isinstance(item, dict) else item) for item in items]
        text = ResponseOutputText(
            text=self.answer([str(system_instructions), *sent]), type="output_text", annotations=[]
        )
        message = ResponseOutputMessage(
            id="m", content=[text], role="assistant", status="completed", type="message"
        )
        return ModelResponse(output=[message], usage=Usage(), response_id=None)

    def stream_response(self, *_args: Any, **_more: Any) -> Any:
        raise NotImplementedError


def openai_agents(
    most: int | None, system: str, asked: list[str], answers: list[str], send: Send
) -> None:
    """Keep the messages in a session, with a limit of what is read from it."""
    turn = 0

    def answer(sent: list[str]) -> str:
        send(turn, sent)
        return answers[turn]

    agent = OpenAIAgent(name="a", instructions=system, model=_Scripted(answer))
    session = SQLiteSession("c")
    settings = RunConfig(tracing_disabled=True, session_settings=SessionSettings(limit=most))
    for turn, text in enumerate(asked):  # noqa: B007 - read by the model
        Runner.run_sync(agent, text, session=session, run_config=settings)


PEERS: dict[str, Hold] = {
    "Pydantic AI, everything": partial(pydantic_ai, None),
    "Pydantic AI, newest 20": partial(pydantic_ai, 20),
    "LangChain, everything": partial(langchain, None),
    "LangChain, trim_messages to 20": partial(langchain, 20),
    **({"LangChain, SummarizationMiddleware": langchain_summaries} if HAS_AGENTS else {}),
    "OpenAI Agents SDK, everything": partial(openai_agents, None),
    "OpenAI Agents SDK, newest 20": partial(openai_agents, 20),
}
