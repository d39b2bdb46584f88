"""Values are independent of the dicts, lists and sets that they are made from."""

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
from chatclient._internal.json import dumps, loads
from chatclient.chat.embedding import EmbeddingOptions
from chatclient.chat.messages import ProviderPart, Reasoning, ToolResponse
from chatclient.chat.response import ChatResponseMetadata, Generation
from chatclient.providers.anthropic.model import AnthropicChatOptions
from chatclient.providers.gemini.model import GeminiChatOptions
from chatclient.providers.ollama.model import OllamaChatOptions
from chatclient.providers.openai.chat import OpenAIChatOptions
from chatclient.providers.openai.responses import OpenAIResponsesChatOptions
from chatclient.tools import (
    ToolDefinition,
    ToolExecutionResult,
    ToolFailurePolicy,
    ToolLimits,
    ToolRequest,
    ToolResult,
)

SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}


@pytest.mark.feature("tool-options-aliases-lists-maps")
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
def test_values_copy_dicts(make: Any, name: str) -> None:
    """Changing a dict afterwards does not change the value."""
    given = {"key": 1}
    value = make(given)
    given["key"] = 2
    kept = getattr(value, name)

    assert kept == {"key": 1}
    with pytest.raises(TypeError, match="immutable"):
        kept["key"] = 3


@pytest.mark.parametrize(("name", "key"), [("tools", "pay"), ("reactions", "timeout")])
def test_policies_copy_dicts(name: str, key: str) -> None:
    """Changing the dict afterwards does not change the policy."""
    given: dict[Any, Any] = {key: "tell"}
    policy = ToolFailurePolicy(**{name: given})  # type: ignore[arg-type]
    given[key] = "raise"

    assert getattr(policy, name) == {key: "tell"}


@pytest.mark.feature("tool-options-aliases-lists-maps")
def test_options_copy_lists() -> None:
    """Lists of tools, names and stop strings are copied."""
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
def test_provider_options_copy_collections(kind: Any) -> None:
    """Options of a client are unchanged and hashable."""
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


def test_single_values_instead_of_lists() -> None:
    """A string or mapping is one value, not a collection."""
    search = {"type": "web_search"}
    one: Any = {"include": "x", "server_tools": search, "stop": "end"}
    several = OpenAIResponsesChatOptions(include=["x"], server_tools=[search], stop=["end"])

    assert OpenAIResponsesChatOptions(**one) == several
    assert AnthropicChatOptions(thinking="adaptive").thinking == "adaptive"


def test_limits_copy_sets() -> None:
    """Excluded tools may be given as any collection."""
    given: Any = {"a"}
    limits = ToolLimits(excluded=given)
    given.add("b")

    assert limits.excluded == frozenset({"a"})
