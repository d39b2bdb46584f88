"""A model that calls your tools: blocking, asynchronous and streamed.

Uses OpenAI when OPENAI_API_KEY is set, otherwise the local model, which needs no key:

    make demo
"""

import asyncio
import os
from datetime import datetime
from typing import Annotated

from chatclient import ChatClient
from chatclient.errors import ToolError
from chatclient.events import TextDelta, ToolCallFinished
from chatclient.tools import ToolCallingManager, ToolExecution, ToolLimits, ToolParam, tool


class DateTimeTools:
    """What the model cannot know or do by itself."""

    def __init__(self) -> None:
        self.alarms: list[datetime] = []

    @tool
    def get_current_date_time(self) -> str:
        """Get the current date and time in the user's time zone."""
        return datetime.now().astimezone().isoformat(timespec="seconds")

    @tool
    def set_alarm(
        self, time: Annotated[datetime, ToolParam(description="Time in ISO 8601 format")]
    ) -> str:
        """Set an alarm for the given time."""
        if time.astimezone() < datetime.now().astimezone():
            # A tool speaks to the model: a small one guesses a date rather than asking for it.
            msg = f"{time:%d %B %Y, %H:%M} has passed. Get the current date and time first."
            raise ToolError(msg)
        self.alarms.append(time)
        return f"Alarm set for {time:%A, %d %B %Y, %H:%M}"


@tool
def get_current_weather(city: str) -> dict[str, str | int]:
    """Get the current weather in a city.

    Args:
        city: The city's name.
    """
    degrees = {"amsterdam": 14, "paris": 19}.get(city.lower(), 17)
    return {"city": city, "temperature_celsius": degrees, "conditions": "partly cloudy"}


def choose_model() -> str:
    """Return the name of a model that works on this machine."""
    return "openai:gpt-5-mini" if os.environ.get("OPENAI_API_KEY") else "local"


def show(executions: tuple[ToolExecution, ...]) -> None:
    """Print the tool calls of an answer."""
    for execution in executions:
        call = execution.tool_call
        print(f"    called {call.name}({call.arguments}) -> {execution.response.data}")


def blocking(client: ChatClient) -> None:
    """Ask, and wait for the answer."""
    question = "What day is tomorrow?"
    print(f"\n[blocking] {question}")
    answer = client.prompt(question).call()
    show(answer.tool_executions())
    print(f"    {answer.content()}")


async def asynchronous(client: ChatClient) -> None:
    """Ask without blocking the event loop."""
    question = "Set an alarm 10 minutes from now"
    print(f"\n[async] {question}")
    answer = await client.prompt(question).acall()
    show(answer.tool_executions())
    print(f"    {answer.content()}")


def streamed(client: ChatClient) -> None:
    """Watch the answer come, with the tool calls as they happen."""
    question = "What is the weather in Amsterdam and in Paris?"
    print(f"\n[streamed] {question}")
    spoken = False
    for event in client.prompt(question).tools(get_current_weather).stream().events():
        match event:
            case ToolCallFinished(tool_call=call, response=response):
                print(f"    called {call.name}({call.arguments}) -> {response.data}")
            case TextDelta(text=text):
                print(text if spoken else f"    {text}", end="", flush=True)
                spoken = True
            case _:
                pass
    print()


def main() -> None:
    """Ask three questions in three ways."""
    tools = DateTimeTools()
    # A small model may repeat a call instead of answering: then it is asked once more, without
    # tools, to answer from what it has found out.
    limits = ToolLimits(max_repeats=1, on_exceeded="final_answer")
    builder = (
        ChatClient.builder(choose_model())
        .default_tools(tools)
        .tool_calling_manager(ToolCallingManager(limits=limits))
    )
    with builder.default_options(temperature=0.0).build() as client:
        print(client)
        blocking(client)
        asyncio.run(asynchronous(client))
        streamed(client)
        print(f"\nAlarms set: {', '.join(f'{alarm:%H:%M}' for alarm in tools.alarms) or 'none'}")


if __name__ == "__main__":
    main()
