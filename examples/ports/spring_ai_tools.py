"""The programs of Spring AI's page on tools that define them, in its order."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from chatclient import (
    ChatClient,
    ChatModel,
    ChatOptions,
    ChatResponse,
    Prompt,
    ToolContext,
    ToolParam,
    tool,
)
from chatclient.tools import (
    AugmentedArguments,
    FunctionToolCallback,
    StaticToolCallbackResolver,
    ToolCallback,
    ToolDefinition,
    ToolMetadata,
    ToolRegistry,
    augment,
    tool_callbacks,
)


class DateTimeTools:
    """A tool that finds something out, and one that does something."""

    def __init__(self) -> None:
        self.alarms: list[datetime] = []

    @tool(description="Tell the date and time where the user is")
    def get_current_date_time(self) -> str:
        return datetime.now().astimezone().isoformat()

    @tool(description="Set an alarm")
    def set_alarm(
        self, time: Annotated[str, ToolParam(description="The time, in the form of ISO 8601")]
    ) -> None:
        self.alarms.append(datetime.fromisoformat(time))


# --- methods as tools ---


def retrieve_information(model: ChatModel) -> str:
    """Answer with what a tool knows."""
    client = ChatClient.create(model)
    return client.prompt("What day is tomorrow?").tools(DateTimeTools()).call().content()


def take_action(model: ChatModel) -> list[datetime]:
    """Act: one tool's result is the argument of another."""
    tools = DateTimeTools()
    ChatClient.create(model).prompt("Wake me in 10 minutes.").tools(tools).call().content()
    return tools.alarms


def callbacks_of_an_object(model: ChatModel) -> str:
    """Make the callbacks first."""
    callbacks = tool_callbacks(DateTimeTools())
    client = ChatClient.create(model)
    return client.prompt("What day is tomorrow?").tools(*callbacks).call().content()


def default_tools(model: ChatModel) -> str:
    """Offer tools in all requests of a client."""
    client = ChatClient.builder(model).default_tools(DateTimeTools()).build()
    return client.prompt("What day is tomorrow?").call().content()


def tools_of_a_model_call(model: ChatModel) -> ChatResponse:
    """Ask the model itself: it is sent the tools, and runs none."""
    options = ChatOptions(tool_callbacks=tool_callbacks(DateTimeTools()))
    return model.call(Prompt("What day is tomorrow?", options))


class PlainDateTimeTools:
    """The same without decorators."""

    def get_current_date_time(self) -> str:
        return "2026-11-28T12:00:00"

    @staticmethod
    def get_time_zone() -> str:
        return "Europe/Rome"


def method_tool_callback(model: ChatModel) -> str:
    """Make tools of a method and a static method that are not decorated."""
    now = FunctionToolCallback(
        PlainDateTimeTools().get_current_date_time,
        description="Tell the date and time where the user is",
        metadata=ToolMetadata(effect="read"),
    )
    zone = FunctionToolCallback(PlainDateTimeTools.get_time_zone)
    client = ChatClient.builder(model).default_tools(now, zone).build()
    return client.prompt("What day is tomorrow?").call().content()


# --- functions as tools ---


class Unit(StrEnum):
    """Units of temperature."""

    C = "C"
    F = "F"


@dataclass(frozen=True)
class WeatherRequest:
    """Where, and in which unit."""

    location: Annotated[str, ToolParam(description="The name of a city or a country")]
    unit: Unit


@dataclass(frozen=True)
class WeatherResponse:
    """A temperature."""

    temp: float
    unit: Unit


class WeatherService:
    """A function as an object."""

    def __call__(self, request: WeatherRequest) -> WeatherResponse:
        return WeatherResponse(30.0, request.unit)


def current_weather() -> ToolCallback:
    """Return a tool whose input is one value."""
    return FunctionToolCallback(
        WeatherService(),
        name="currentWeather",
        description="Get the weather in a place",
        input_type=WeatherRequest,
    )


def function_tool_callback(model: ChatModel) -> str:
    """Offer a function as a tool."""
    client = ChatClient.create(model)
    return client.prompt("How warm is Copenhagen?").tools(current_weather()).call().content()


def tool_names(model: ChatModel) -> str:
    """Name a tool that the client finds when it is needed."""
    resolver = StaticToolCallbackResolver([current_weather()])
    client = ChatClient.builder(model).tool_callback_resolver(resolver).build()
    return client.prompt("How warm is Copenhagen?").tools("currentWeather").call().content()


def registered_functions(model: ChatModel) -> str:
    """Find functions by their names, as Spring finds beans."""

    @tool(name="currentWeather")
    def weather_in(place: str) -> WeatherResponse:
        """Get the weather in a place."""
        return WeatherResponse(30.0, Unit.C)

    registry = ToolRegistry(weather_in)
    client = ChatClient.builder(model).tool_callback_resolver(registry).build()
    return client.prompt("How warm is Copenhagen?").tools("currentWeather").call().content()


# --- definitions, results and context ---


def definition_of_ones_own() -> ToolDefinition:
    """Write the schema, instead of having it made."""
    schema = '{"type": "object", "properties": {"location": {"type": "string"}}}'
    text = '{"name": "currentWeather", "description": "Get it", "input_schema": %s}'
    return ToolDefinition.from_json(text % schema)


class Customers:
    """Tools with optional arguments, a context, a converter and a direct result."""

    @tool(description="Change what is known of a customer")
    def update_customer(self, id: int, name: str, email: str | None = None) -> str:
        return f"{id} {name} {email}"

    @tool(description="Find a customer", effect="read")
    def find_customer(self, id: int, context: ToolContext) -> str:
        return f"customer {id} of {context['tenant_id']}"

    @tool(description="Find a customer", result_converter=lambda found: f"<{found}>")
    def find_converted(self, id: int) -> str:
        return f"customer {id}"

    @tool(description="Find a customer", return_direct=True)
    def find_directly(self, id: int) -> str:
        return f"customer {id}"


def customers(model: ChatModel) -> tuple[str, list[str]]:
    """Return the answer, and what the model was told about each call."""
    request = ChatClient.create(model).prompt("Tell me about customer 42.").tools(Customers())
    answer = request.tool_context({"tenant_id": "acme"}).call()
    return answer.content(), [each.response.data for each in answer.tool_executions()]


@dataclass
class AgentThinking:
    """What the model adds to the arguments of each tool."""

    inner_thought: Annotated[str, ToolParam(description="Why you call the tool")]
    confidence: Annotated[str | None, ToolParam(description="low, medium or high")] = None


def augmented_arguments(model: ChatModel) -> list[AgentThinking]:
    """Ask the model why it calls a tool, without changing the tool."""
    thoughts: list[AgentThinking] = []

    def consumer(event: AugmentedArguments[Any]) -> None:
        thoughts.append(event.extra)

    tools = augment(DateTimeTools(), arguments=AgentThinking, consumer=consumer)
    client = ChatClient.builder(model).default_tools(tools).build()
    client.prompt("What day is tomorrow?").call().content()
    return thoughts
