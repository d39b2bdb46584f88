"""The programs of LangChain4j's page on tools, in its order."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from math import sqrt
from typing import Annotated, Protocol

from pydantic import BaseModel, Field

from chatclient import (
    AssistantMessage,
    ChatClient,
    ChatModel,
    ChatOptions,
    Prompt,
    StreamEvent,
    ToolCall,
    ToolCallFinished,
    ToolContext,
    ToolParam,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
    tool,
)
from chatclient.mcp import McpServer, McpToolCallbackProvider
from chatclient.services import MemoryId, Result, ai_service
from chatclient.tools import (
    DataToolCallback,
    ToolCallback,
    ToolCallingManager,
    ToolDefinition,
    ToolFailure,
    ToolFailurePolicy,
    ToolMemoryId,
    ToolRequest,
    tool_callbacks,
)


class Assistant(Protocol):
    """An interface that a model implements."""

    def chat(self, message: str) -> str: ...


# --- the low level ---


class TemperatureUnit(StrEnum):
    """Units of temperature."""

    CELSIUS = "CELSIUS"
    FAHRENHEIT = "FAHRENHEIT"


SPECIFICATION = ToolDefinition(
    "getWeather",
    "Tell the weather in a city",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "The city"},
            "temperatureUnit": {"enum": ["CELSIUS", "FAHRENHEIT"]},
        },
        "required": ["city"],
    },
)


class WeatherTools:
    """The same specification, made from a method."""

    @tool(name="getWeather", description="Tell the weather in a city")
    def get_weather(
        self,
        city: Annotated[str, ToolParam(description="The city")],
        temperature_unit: TemperatureUnit | None = None,
    ) -> str:
        return f"{city}: rain"


def specifications() -> list[ToolDefinition]:
    """Return specifications that were made from methods."""
    return [callback.definition for callback in tool_callbacks(WeatherTools())]


def low_level(model: ChatModel) -> str:
    """Run the tool by hand, and send the result back."""
    options = ChatOptions(tool_callbacks=tool_callbacks(WeatherTools()))
    question = UserMessage("How is the weather in London tomorrow?")
    response = model.call(Prompt([question], options))
    [asked] = response.message.tool_calls
    result = ToolResponseMessage([ToolResponse(asked.id, asked.name, "Rain, tomorrow.")])
    messages = [question, AssistantMessage(tool_calls=[asked]), result]
    return model.call(Prompt(messages, options)).text


# --- the high level ---


class Calculator:
    """Tools of a service."""

    @tool(description="Add two numbers")
    def sum(self, a: float, b: float) -> float:
        return a + b

    @tool(description="Tell the square root of a number")
    def square_root(self, x: float) -> float:
        return sqrt(x)


def math_genius(model: ChatModel) -> str:
    """Implement an interface, with tools."""
    client = ChatClient.builder(model).default_tools(Calculator()).build()
    return ai_service(Assistant, client).chat("What is the square root of 475695037565?")


class Person(BaseModel):
    """A value with fields that are described, optional, and of its own type."""

    name: str = Field(description="How they are called")
    email: str | None = None
    children: list["Person"] = []


def optional_and_nested(model: ChatModel) -> list[Person]:
    """Take a nested value."""
    added: list[Person] = []

    @tool
    def add(person: Person) -> None:
        """Add a person."""
        added.append(person)

    client = ChatClient.builder(model).default_tools(add).build()
    ai_service(Assistant, client).chat("Add Ada and her child Bob.")
    return added


class Chats(Protocol):
    """An interface with a conversation for each user."""

    def chat(self, user: Annotated[str, MemoryId], message: str) -> str: ...


def tool_memory_id(model: ChatModel) -> list[str]:
    """Tell a tool whose conversation it is."""
    users: list[str] = []

    @tool
    def note(text: str, user: Annotated[str, ToolMemoryId]) -> None:
        """Write a note."""
        users.append(f"{user}: {text}")

    ai_service(Chats, ChatClient.builder(model).default_tools(note).build()).chat("ada", "Note it.")
    return users


@tool
def cancel_booking(number: str) -> str:
    """Cancel a booking."""
    return f"{number} is cancelled"


class Bookings(Protocol):
    """An interface whose answers tell what was done."""

    def chat(self, message: str) -> Result[str]: ...

    def events(self, message: str) -> Iterator[StreamEvent]: ...


def executed_tools(model: ChatModel) -> tuple[str, list[str]]:
    """Return the answer and the results of its tools."""
    client = ChatClient.builder(model).default_tools(cancel_booking).build()
    result = ai_service(Bookings, client).chat("Cancel booking 123-456.")
    return result.content, [each.response.data for each in result.tool_executions]


def executed_tools_of_a_stream(model: ChatModel) -> list[str]:
    """See tools while the answer is streamed."""
    client = ChatClient.builder(model).default_tools(cancel_booking).build()
    events = ai_service(Bookings, client).events("Cancel booking 123-456.")
    return [each.response.data for each in events if isinstance(each, ToolCallFinished)]


# --- tools that are data, and tools that come and go ---


def booking_tool() -> ToolCallback:
    """Return a tool made of a specification and an executor."""

    def executor(asked: ToolCall, context: ToolContext) -> str:
        return f"booking {json.loads(asked.arguments)['bookingNumber']}"

    number = {"type": "string", "description": "The number, such as B-12345"}
    schema = {"type": "object", "properties": {"bookingNumber": number}}
    definition = ToolDefinition("get_booking_details", "Tell the details of a booking", schema)
    return DataToolCallback(definition, executor)


def tools_that_are_data(model: ChatModel) -> str:
    """Offer a tool that comes from a configuration."""
    client = ChatClient.builder(model).default_tools(booking_tool()).build()
    return ai_service(Assistant, client).chat("What about booking B-12345?")


@dataclass(frozen=True)
class BookingTools:
    """Offers the tool if the user speaks of a booking."""

    make: Callable[[], ToolCallback]

    def tool_callbacks(self, request: ToolRequest) -> list[ToolCallback]:
        said = request.user_message.text if request.user_message else ""
        return [self.make()] if "booking" in said else []


def dynamic_tools(model: ChatModel) -> str:
    """Choose tools for each request."""
    client = ChatClient.builder(model).default_tools(BookingTools(booking_tool)).build()
    return ai_service(Assistant, client).chat("What about booking B-12345?")


def hallucinated_tools(model: ChatModel) -> str:
    """Tell the model that it has called a tool that does not exist."""

    def reaction(failure: ToolFailure) -> str:
        return f"There is no tool {failure.tool_call.name}."

    policy = ToolFailurePolicy(reactions={"unknown_tool": reaction})
    manager = ToolCallingManager(exception_processor=policy)
    client = ChatClient.builder(model).default_tools(cancel_booking).tool_calling_manager(manager)
    return ai_service(Assistant, client.build()).chat("Greet the world.")


# --- the Model Context Protocol ---


def mcp_tools(model: ChatModel, server: McpServer) -> str:
    """Offer the tools of an MCP server."""
    with McpToolCallbackProvider(server) as tools:
        client = ChatClient.builder(model).default_tools(tools).build()
        return client.prompt("When is the shop open on Sunday?").call().content()
