"""Unknown keyword arguments of constructors: the suggested name and place."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from chatclient import ChatClient, ChatOptions, PromptTemplate, advisors
from chatclient.advisors import (
    Budget,
    InputGuardrailAdvisor,
    MessageChatMemoryAdvisor,
    QuestionAnswerAdvisor,
    RetrievalAugmentationAdvisor,
    SafeGuardAdvisor,
    SessionMemoryAdvisor,
    SimpleLoggerAdvisor,
    StructuredOutputValidationAdvisor,
    ToolCallingAdvisor,
    ToolSearchToolCallingAdvisor,
)
from chatclient.errors import WrongTypeError
from chatclient.providers import LocalChatModel, OpenAIChatModel, chat_model
from chatclient.testing import ScriptedModel
from chatclient.tools import ToolCallingManager, ToolLimits


@pytest.mark.parametrize(
    ("make", "given", "right"),
    [
        (ToolCallingAdvisor, "tool_calling_manager", "manager"),
        (ToolCallingAdvisor, "advisor_order", "order"),
        (ToolCallingAdvisor, "tool_execution_eligibility_predicate", "eligibility"),
        (ToolSearchToolCallingAdvisor, "tool_calling_manager", "manager"),
        (ToolSearchToolCallingAdvisor, "tool_searcher", "tool_index"),
        (MessageChatMemoryAdvisor, "chat_memory", "memory"),
        (SessionMemoryAdvisor, "session_service", "memory"),
        (QuestionAnswerAdvisor, "prompt_template", "template"),
        (RetrievalAugmentationAdvisor, "document_retriever", "*retrievers"),
        (SafeGuardAdvisor, "sensitive_words", "*forbidden"),
        (StructuredOutputValidationAdvisor, "output_type", "kind"),
        (SimpleLoggerAdvisor, "request_to_string", "request_to_text"),
        (InputGuardrailAdvisor, "advisor_order", "order"),
    ],
)
def test_names_of_the_reference(make: Callable[..., Any], given: str, right: str) -> None:
    """The error names the right parameter."""
    name = getattr(make, "__name__", "")
    with pytest.raises(TypeError) as caught:
        make(**{given: None})
    assert str(caught.value) == f"{name}() has no parameter {given!r}; it is {right!r}"


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (lambda: ToolLimits(max_round=3), "it is 'max_rounds'"),  # type: ignore[call-arg]
        (lambda: ToolLimits(max_turns=3), "it is 'max_rounds'"),  # type: ignore[call-arg]
        (lambda: Budget(max_tokens=9), "it is 'total_tokens'"),  # type: ignore[call-arg]
        (
            lambda: ToolCallingManager(max_rounds=3),  # type: ignore[call-arg]
            "write limits=ToolLimits(max_rounds=...)",
        ),
        (
            lambda: OpenAIChatModel("x", api_key="k", temperature=0.5),  # type: ignore[call-arg]
            "write options=ChatOptions(temperature=...)",
        ),
        (
            lambda: OpenAIChatModel("x", api_key="k", reasoning_effort="low"),  # type: ignore[call-arg]
            "write options=OpenAIChatOptions(reasoning_effort=...)",
        ),
        (lambda: OpenAIChatModel("x", key="k", api_key="k"), "it is 'api_key'"),  # type: ignore[call-arg]
        (lambda: OpenAIChatModel("x", retries=1, api_key="k"), "it is 'max_retries'"),  # type: ignore[call-arg]
        (lambda: chat_model("ollama:x", retries=1), "OllamaChatModel() has no parameter 'retries'"),
        (lambda: LocalChatModel(tools=[]), "ChatClient.builder(model).default_tools(...)"),  # type: ignore[call-arg]
        (lambda: ChatOptions(temprature=1), "it is 'temperature'"),  # type: ignore[call-arg]
        (lambda: PromptTemplate(language="x"), "its parameters are template, variables, rend"),  # type: ignore[call-arg]
        (lambda: ToolCallingAdvisor(odrer=1), "it is 'order'"),  # type: ignore[call-arg]
        (lambda: ToolCallingAdvisor(chat_memory=1), "its parameters are manager, "),  # type: ignore[call-arg]
        (lambda: ChatClient(model="x"), "write ChatClient.create(model)"),  # type: ignore[call-arg]
        (
            lambda: ChatClient.create(ScriptedModel(), tools=[]),  # type: ignore[call-arg]
            "'tools': write ChatClient.builder(model).default_tools(...)",
        ),
        (
            lambda: ChatClient.builder(ScriptedModel(), temperature=1),  # type: ignore[call-arg]
            "write ChatClient.builder(model).default_options(temperature=...)",
        ),
    ],
)
def test_unknown_parameters(make: Callable[[], Any], hint: str) -> None:
    """The message, and not only the traceback, has the hint."""
    with pytest.raises(WrongTypeError) as caught:
        make()
    assert hint in str(caught.value)


def test_other_errors_of_constructors() -> None:
    """Errors in what is called inside stay as they are."""

    class Choices:
        def __iter__(self) -> Any:
            return sorted((), interceptors=1)  # type: ignore[call-overload]

    with pytest.raises(TypeError, match="keyword argument") as caught:
        ToolCallingManager(interceptors=Choices())  # type: ignore[arg-type]
    assert not isinstance(caught.value, WrongTypeError)


def test_classes_of_the_application() -> None:
    """A subclass with other parameters gets the hints of the class that it calls."""

    class Mine(ToolCallingManager):
        def __init__(self, mine: int, **more: Any) -> None:
            super().__init__(**more)

    assert inspect.signature(ToolLimits).parameters["max_rounds"].default
    with pytest.raises(TypeError, match=r"ToolCallingManager\(\) has no .*limits=ToolLimits"):
        Mine(1, max_rounds=3)


@pytest.mark.parametrize(
    "name",
    sorted({n for n in dir(advisors) if n.endswith("Advisor")} - {"StructuredOutputAdvisor"}),
)
def test_every_advisor_gives_hints(name: str) -> None:
    """The order has the same name for all."""
    with pytest.raises(TypeError, match="it is 'order'"):
        getattr(advisors, name)(advisor_order=1)
