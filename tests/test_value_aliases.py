"""Values keep no hold of the dicts, lists and sets that they are made of."""

import copy
from typing import Any, get_type_hints

import pytest

from chatclient import (
    AssistantMessage,
    ChatClientRequest,
    ChatClientResponse,
    ChatOptions,
    ChatResponse,
    Media,
    Prompt,
    ToolCall,
    Usage,
)
from chatclient.embedding import EmbeddingOptions
from chatclient.json import dumps, loads
from chatclient.messages import ProviderPart, Reasoning, ToolResponse
from chatclient.providers.anthropic import AnthropicChatOptions
from chatclient.providers.gemini import GeminiChatOptions
from chatclient.providers.ollama import OllamaChatOptions
from chatclient.providers.openai import OpenAIChatOptions
from chatclient.providers.openai_responses import OpenAIResponsesChatOptions
from chatclient.response import ChatResponseMetadata, Generation
from chatclient.tools import (
    ToolDefinition,
    ToolExecutionResult,
    ToolFailurePolicy,
    ToolLimits,
    ToolRequest,
    ToolResult,
)

SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda given: Media("image/png", b"", metadata=given), "metadata"),
        (lambda given: Reasoning(data=given), "data"),
        (lambda given: ToolCall("1", "f", "{}", given), "metadata"),
        (lambda given: ToolResponse("1", "f", "", metadata=given), "metadata"),
        (lambda given: ProviderPart("x", given), "data"),
        (lambda given: AssistantMessage("x", metadata=given), "metadata"),
        (lambda given: Usage(native=given), "native"),
        (lambda given: Generation(AssistantMessage("x"), metadata=given), "metadata"),
        (lambda given: ChatResponseMetadata(values=given), "values"),
        (lambda given: ChatOptions(extra=given), "extra"),
        (lambda given: ChatOptions(tool_context=given), "tool_context"),
        (lambda given: ChatOptions(output_schema=given), "output_schema"),
        (lambda given: EmbeddingOptions(extra=given), "extra"),
        (lambda given: ChatClientRequest(Prompt("x"), given), "context"),
        (lambda given: ChatClientResponse(ChatResponse(), given), "context"),
        (lambda given: ToolDefinition("f", "", SCHEMA, metadata=given), "metadata"),
        (lambda given: ToolResult("", metadata=given), "metadata"),
        (lambda given: ToolRequest((), given), "context"),
        (lambda given: ToolLimits(per_tool=given), "per_tool"),
        (
            lambda given: ToolExecutionResult((), return_direct=False, executions=(), agents=given),
            "agents",
        ),
    ],
)
def test_a_value_keeps_no_hold_of_what_it_was_made_of(make: Any, name: str) -> None:
    """A dict that changes after a value was made of it does not change the value."""
    given = {"key": 1}
    value = make(given)
    given["key"] = 2
    kept = getattr(value, name)

    assert kept == {"key": 1}
    with pytest.raises(TypeError, match="immutable"):
        kept["key"] = 3


@pytest.mark.parametrize(("name", "key"), [("tools", "pay"), ("reactions", "timeout")])
def test_a_policy_keeps_no_hold_of_what_it_was_made_of(name: str, key: str) -> None:
    """Whoever changes the dict afterwards does not change the policy."""
    given: dict[Any, Any] = {key: "tell"}
    policy = ToolFailurePolicy(**{name: given})  # type: ignore[arg-type]
    given[key] = "raise"

    assert getattr(policy, name) == {key: "tell"}


def test_options_keep_no_hold_of_lists() -> None:
    """Lists of tools, names and stop texts may change afterwards, also when given directly."""
    names, stops = ["a"], ["x"]
    given: Any = {"tool_names": names, "stop": stops}
    options = ChatOptions(**given)
    names.append("b")
    stops.append("y")

    assert (options.tool_names, options.stop) == (("a",), ("x",))


PROVIDERS_OWN = (
    OpenAIChatOptions,
    OpenAIResponsesChatOptions,
    AnthropicChatOptions,
    GeminiChatOptions,
    OllamaChatOptions,
)


@pytest.mark.parametrize("kind", PROVIDERS_OWN)
def test_options_of_providers_keep_no_hold_of_anything(kind: Any) -> None:
    """Whatever a built client is to send stays as it was, and can be hashed."""
    given: dict[str, Any] = {}
    for name, hint in get_type_hints(kind).items():
        if "Mapping" in str(hint):
            given[name] = {"a": {"b": [1]}}
            if "Sequence" in str(hint):
                given[name] = [given[name], ["x"]]
        elif "Sequence[str]" in str(hint):
            given[name] = ["x"]
    expected = copy.deepcopy(given)
    options = kind(**given)
    sent = dumps({name: getattr(options, name) for name in given})
    for value in given.values():
        value.clear()

    assert loads(sent) == expected
    assert dumps({name: getattr(options, name) for name in given}) == sent
    assert hash(options) == hash(kind(**expected))


def test_one_value_stands_for_several() -> None:
    """A text is not taken for its letters, and a mapping not for its keys."""
    search = {"type": "web_search"}
    one: Any = {"include": "x", "server_tools": search, "stop": "end"}
    several = OpenAIResponsesChatOptions(include=["x"], server_tools=[search], stop=["end"])

    assert OpenAIResponsesChatOptions(**one) == several
    assert AnthropicChatOptions(thinking="adaptive").thinking == "adaptive"


def test_limits_keep_no_hold_of_a_set() -> None:
    """The tools that are excluded may be given as any collection."""
    given: Any = {"a"}
    limits = ToolLimits(excluded=given)
    given.add("b")

    assert limits.excluded == frozenset({"a"})
