"""Programs of other libraries' pages on tools, written with this one (examples/ports)."""

import inspect
import json
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
from ports import langchain4j, spring_ai_execution, spring_ai_tools

from chatclient import ToolResponseMessage
from chatclient.errors import ToolExecutionError
from chatclient.mcp import McpServer
from chatclient.testing import Answer, ScriptedModel, call
from tests.support.bag_of_words import BagOfWords
from tests.support.paths import SUPPORT

NOW = call("get_current_date_time")
WARM = call("currentWeather", {"location": "Copenhagen", "unit": "C"})
CITIES = [call("weather", {"city": "Amsterdam"}), call("weather", {"city": "Paris"})]
BOOKING = call("get_booking_details", {"bookingNumber": "B-12345"})
CANCEL = call("cancel_booking", {"number": "123-456"})
FOUND = call("toolSearchTool", {"query": "weather"})


def results(model: ScriptedModel) -> list[str]:
    """Return what the model was told by tools in its last call."""
    messages = model.prompts[-1].messages
    told = [each for each in messages if isinstance(each, ToolResponseMessage)]
    return [response.data for message in told for response in message.responses]


# What each program of a page is answered by the model, and returns.
PROGRAMS: dict[Callable[..., Any], tuple[list[Answer], Any]] = {
    spring_ai_tools.retrieve_information: ([NOW, "Sunday."], "Sunday."),
    spring_ai_tools.callbacks_of_an_object: ([NOW, "Sunday."], "Sunday."),
    spring_ai_tools.default_tools: ([NOW, "Sunday."], "Sunday."),
    spring_ai_tools.method_tool_callback: ([[NOW, call("get_time_zone")], "Sunday."], "Sunday."),
    spring_ai_tools.function_tool_callback: ([WARM, "30 degrees."], "30 degrees."),
    spring_ai_tools.tool_names: ([WARM, "30 degrees."], "30 degrees."),
    spring_ai_tools.registered_functions: (
        [call("currentWeather", {"place": "Copenhagen"}), "30 degrees."],
        "30 degrees.",
    ),
    spring_ai_execution.framework_controlled: ([CITIES, "Cool."], "Cool."),
    spring_ai_execution.advisor_controlled: ([CITIES, "Cool."], "Cool."),
    spring_ai_execution.loop_with_a_client: ([CITIES, "Cool."], "Cool."),
    spring_ai_execution.loop_with_a_model: ([CITIES, "Cool."], "Cool."),
    spring_ai_execution.loop_with_memory: ([CITIES, "Cool.", "That."], ("Cool.", "That.")),
    spring_ai_execution.failures_are_told: (
        [call("weather", {"city": "Atlantis"}), "There is no such city."],
        "There is no such city.",
    ),
    spring_ai_execution.tool_search: (
        [FOUND, CITIES[0], "Cool."] * 10,
        ["Cool."] * 10,
    ),
    langchain4j.low_level: ([call("getWeather", {"city": "London"}), "Rain."], "Rain."),
    langchain4j.math_genius: ([call("square_root", {"x": 475695037565}), "689706."], "689706."),
    langchain4j.tool_memory_id: ([call("note", {"text": "tea"}), "Done."], ["ada: tea"]),
    langchain4j.executed_tools: ([CANCEL, "Done."], ("Done.", ["123-456 is cancelled"])),
    langchain4j.executed_tools_of_a_stream: ([CANCEL, "Done."], ["123-456 is cancelled"]),
    langchain4j.tools_that_are_data: ([BOOKING, "It is fine."], "It is fine."),
    langchain4j.dynamic_tools: ([BOOKING, "It is fine."], "It is fine."),
    langchain4j.hallucinated_tools: ([call("greet"), "I cannot."], "I cannot."),
}
# Those whose results need more than a comparison have tests of their own below.
ALONE = {
    *("take_action", "tools_of_a_model_call", "current_weather", "definition_of_ones_own"),
    *("customers", "augmented_arguments", "without_automatic_calls", "eligibility"),
    *("memory_outside_the_loop", "memory_inside_the_loop", "failures_are_raised"),
    *("weather", "specifications", "optional_and_nested", "cancel_booking", "booking_tool"),
    *("semantic_tool_search", "mcp_tools"),
}


def test_every_program_is_run() -> None:
    """No function of the ports is without a test."""
    modules = (spring_ai_tools, spring_ai_execution, langchain4j)
    written = {
        name
        for module in modules
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__
    }

    assert written == {program.__name__ for program in PROGRAMS} | ALONE


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_program(program: Callable[..., Any]) -> None:
    """Each program returns what its original prints."""
    answers, expected = PROGRAMS[program]
    model = ScriptedModel(*answers)

    assert program(model) == expected
    assert model.unused == 0


@pytest.mark.parametrize(
    "program", [spring_ai_execution.loop_with_a_client, spring_ai_execution.loop_with_a_model]
)
def test_streamed_loops(program: Callable[..., Any]) -> None:
    """Loops of one's own stream, too."""
    model = ScriptedModel(CITIES, "Cool.")

    assert program(model, streaming=True) == "Cool."
    assert results(model) == ["Amsterdam: 14 degrees", "Paris: 14 degrees"]


def test_actions() -> None:
    """The alarm is set at the time that the model has calculated."""
    alarm = call("set_alarm", {"time": "2026-11-28T12:10:00"})

    [set_for] = spring_ai_tools.take_action(ScriptedModel(NOW, alarm, "Done."))

    assert set_for.isoformat() == "2026-11-28T12:10:00"


@pytest.mark.parametrize(
    "program", [spring_ai_tools.tools_of_a_model_call, spring_ai_execution.without_automatic_calls]
)
def test_calls_that_are_not_run(program: Callable[..., Any]) -> None:
    """The calls are in the response."""
    response = program(ScriptedModel(NOW))

    assert response.has_tool_calls()


@pytest.mark.parametrize(("calls", "runs"), [(CITIES[:1], True), (CITIES, False)])
def test_eligibility(calls: list[Any], runs: bool) -> None:
    """The function decides which calls are run."""
    response = spring_ai_execution.eligibility(ScriptedModel(calls, "Cool."))

    assert response.has_tool_calls() is not runs


def test_definitions() -> None:
    """Schemas made from types and schemas that are written look the same to a model."""
    made = spring_ai_tools.current_weather().definition
    [method] = langchain4j.specifications()

    assert set(made.input_schema["properties"]) == {"location", "unit"}
    assert set(spring_ai_tools.definition_of_ones_own().input_schema["properties"]) == {"location"}
    assert method.input_schema["required"] == langchain4j.SPECIFICATION.input_schema["required"]


def test_customers() -> None:
    """Optional arguments, a context that the model does not see, a converter, a direct result."""
    asks = [
        call("update_customer", {"id": 42, "name": "Ada"}),
        call("find_customer", {"id": 42}),
        call("find_converted", {"id": 42}),
    ]
    model = ScriptedModel(asks, call("find_directly", {"id": 42}))

    answer, told = spring_ai_tools.customers(model)

    assert answer == "customer 42"
    assert told == ["42 Ada None", "customer 42 of acme", "<customer 42>", "customer 42"]
    assert "acme" not in json.dumps([str(prompt.messages) for prompt in model.prompts[:1]])


def test_augmented_arguments() -> None:
    """The model explains itself, and the tool gets its own arguments only."""
    asks = call("get_current_date_time", {"inner_thought": "I need today."})

    [thought] = spring_ai_tools.augmented_arguments(ScriptedModel(asks, "Sunday."))

    assert (thought.inner_thought, thought.confidence) == ("I need today.", None)


@pytest.mark.parametrize(
    "program",
    [spring_ai_execution.memory_outside_the_loop, spring_ai_execution.memory_inside_the_loop],
)
def test_memory(program: Callable[..., Any]) -> None:
    """Both places of the memory keep the whole turn."""
    remembered = program(ScriptedModel(CITIES[0], "Cool."))

    assert [type(each).__name__ for each in remembered] == [
        "UserMessage",
        "AssistantMessage",
        "ToolResponseMessage",
        "AssistantMessage",
    ]


def test_raised_failure() -> None:
    """The error of the tool is the cause."""
    with pytest.raises(ToolExecutionError) as caught:
        spring_ai_execution.failures_are_raised(
            ScriptedModel(call("weather", {"city": "Atlantis"}))
        )

    assert isinstance(caught.value.__cause__, ValueError)


def test_nested_values() -> None:
    """A type may contain itself."""
    person = {"name": "Ada", "children": [{"name": "Bob"}]}

    [ada] = langchain4j.optional_and_nested(ScriptedModel(call("add", {"person": person}), "Done."))

    assert [child.name for child in ada.children] == ["Bob"]


def test_semantic_tool_search() -> None:
    """The search finds the tool, which is offered from then on."""
    model = ScriptedModel(FOUND, CITIES[0], "Cool.")

    assert spring_ai_execution.semantic_tool_search(model, BagOfWords()) == "Cool."
    assert results(model)[-1] == "Amsterdam: 14 degrees"


@pytest.mark.skipif(find_spec("mcp") is None, reason="needs the extra mcp")
def test_mcp_tools() -> None:
    """The tools of the server are called like others."""
    server = McpServer.stdio("shop", sys.executable, str(SUPPORT / "mcp_shop.py"), "stdio")
    model = ScriptedModel(call("opening_hours", {"day": "Sunday"}), "It is closed.")

    assert langchain4j.mcp_tools(model, server) == "It is closed."
    assert results(model) == ["closed"]
