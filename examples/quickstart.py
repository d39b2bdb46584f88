"""A model that calls your tools: blocking, asynchronous and streamed.

Uses OpenAI when OPENAI_API_KEY is set, otherwise the local model, which needs no key:

    make demo
"""

import asyncio
import os
from datetime import UTC, datetime, timedelta
from typing import Annotated

from chatclient import ChatClient, TextDelta, ToolCallFinished, ToolParam, tool
from chatclient.tools import ToolCallingManager, ToolExecution, ToolLimits


class DateTimeTools:
    """Tools that a model needs to handle dates and alarms.

    The arguments are what is said ("tomorrow", "in 10 minutes"), and the arithmetic is Python's:
    a small model adds to a date or a time of day wrongly, and says so as if it were right.
    """

    def __init__(self) -> None:
        self.alarms: list[datetime] = []

    @tool
    def get_date(
        self, days_from_today: Annotated[int, ToolParam(description="0 is today, 1 is tomorrow")]
    ) -> str:
        """Get the weekday and the date of a day."""
        day = datetime.now().astimezone() + timedelta(days=days_from_today)
        return f"{day:%A, %d %B %Y}"

    @tool
    def set_alarm(self, minutes_from_now: int) -> str:
        """Set an alarm that rings in some minutes."""
        alarm = (datetime.now(UTC) + timedelta(minutes=minutes_from_now)).astimezone()
        self.alarms.append(alarm)
        return f"The alarm will ring at {alarm:%H:%M}."


@tool
def get_current_weather(city: str) -> dict[str, str | int]:
    """Get the current weather in a city.

    Args:
        city: The city's name.
    """
    degrees = {"amsterdam": 14, "paris": 19}.get(city.lower(), 17)
    return {"city": city, "temperature_celsius": degrees, "conditions": "partly cloudy"}


def choose_model() -> str:
    """Return the name of a model that is available on this machine."""
    return "openai:gpt-5-mini" if os.environ.get("OPENAI_API_KEY") else "local"


def show(executions: tuple[ToolExecution, ...]) -> None:
    """Print the tool calls of an answer."""
    for execution in executions:
        call = execution.tool_call
        print(f"    called {call.name}({call.arguments}) -> {execution.response.data}")


def blocking(client: ChatClient) -> None:
    """Send a blocking request."""
    question = "What day is tomorrow?"
    print(f"\n[blocking] {question}")
    answer = client.prompt(question).call()
    show(answer.tool_executions())
    print(f"    {answer.content()}")


async def asynchronous(client: ChatClient) -> None:
    """Send an asynchronous request."""
    question = "Set an alarm 10 minutes from now"
    print(f"\n[async] {question}")
    answer = await client.prompt(question).acall()
    show(answer.tool_executions())
    print(f"    {answer.content()}")


def streamed(client: ChatClient) -> None:
    """Stream an answer and its tool calls."""
    question = "What is the weather in Amsterdam and in Paris?"
    print(f"\n[streamed] {question}")
    spoken = False
    for event in client.prompt(question).tools(get_current_weather).stream().events():
        match event:
            case ToolCallFinished(tool_call=call, response=response):
                print(f"    called {call.name}({call.arguments}) -> {response.data}")
            case TextDelta(text=text):
                print(text if spoken else f"    {text.lstrip()}", end="", flush=True)
                spoken = True
            case _:
                pass
    print()


def main() -> None:
    """Send three questions in three modes."""
    tools = DateTimeTools()
    # A small model may repeat a call instead of answering; the request is then sent once more
    # without tools.
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
