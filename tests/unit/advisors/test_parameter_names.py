"""Parameters of advisors that are called otherwise in the reference."""

from collections.abc import Callable
from typing import Any

import pytest

from chatclient import advisors
from chatclient.advisors import (
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


def test_unknown_names() -> None:
    """Other names are the usual error, and one that fits no parameter is no hint."""
    for wrong in ("odrer", "chat_memory"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{wrong}'"):
            ToolCallingAdvisor(**{wrong: 1})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    sorted({n for n in dir(advisors) if n.endswith("Advisor")} - {"StructuredOutputAdvisor"}),
)
def test_every_advisor_gives_hints(name: str) -> None:
    """The order has the same name for all."""
    with pytest.raises(TypeError, match="it is 'order'"):
        getattr(advisors, name)(advisor_order=1)
