"""Typed tools of providers, and their fallbacks."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from chatclient import ChatClient, ChatModel, ChatOptions, Prompt
from chatclient.errors import ToolDefinitionError, UnsupportedToolError
from chatclient.mcp import McpServer, McpToolCallbackProvider
from chatclient.providers import (
    AnthropicChatModel,
    AnthropicChatOptions,
    CodeExecution,
    FileSearch,
    GeminiChatModel,
    ImageGeneration,
    McpConnector,
    OllamaChatModel,
    OpenAIChatModel,
    OpenAIResponsesChatModel,
    ServerTool,
    WebFetch,
    WebSearch,
    compatible_model,
)
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import tool_callbacks
from tests.support.bodies import body_of
from tests.support.servers import ChatServer, completion

ANTHROPIC = AnthropicChatModel("claude-sonnet-4-6", api_key="k", options=ChatOptions(unset="cache"))
RESPONSES = OpenAIResponsesChatModel("gpt-5.4", api_key="k")
GEMINI = GeminiChatModel("gemini-2.5-flash", api_key="k")
GEMINI_3 = GeminiChatModel("gemini-3-flash", api_key="k")


def search(query: str) -> str:
    """Search with an engine of ours."""
    return f"found {query}"


def tools_of(model: ChatModel, *sources: Any, **options: Any) -> Any:
    """Return the `tools` that *model* sends for *sources*."""
    given = model.options.mutate(tool_callbacks=tool_callbacks(*sources), **options)
    return body_of(model, Prompt("x", given)).get("tools")


@pytest.mark.parametrize(
    ("model", "tool", "sent"),
    [
        (ANTHROPIC, WebSearch(), {"type": "web_search_20250305", "name": "web_search"}),
        (
            ANTHROPIC,
            WebSearch(allowed_domains="a.org", max_uses=3),
            {
                "type": "web_search_20250305",
                "name": "web_search",
                "allowed_domains": ["a.org"],
                "max_uses": 3,
            },
        ),
        (
            ANTHROPIC,
            WebFetch(blocked_domains=["b.org"]),
            {"type": "web_fetch_20250910", "name": "web_fetch", "blocked_domains": ["b.org"]},
        ),
        (ANTHROPIC, CodeExecution(), {"type": "code_execution_20250825", "name": "code_execution"}),
        (
            ANTHROPIC,
            McpConnector("docs", "https://a.org/mcp"),
            {"type": "mcp_toolset", "mcp_server_name": "docs"},
        ),
        (
            ANTHROPIC,
            McpConnector("docs", "https://a.org/mcp", allowed_tools="find"),
            {
                "type": "mcp_toolset",
                "mcp_server_name": "docs",
                "default_config": {"enabled": False},
                "configs": {"find": {"enabled": True}},
            },
        ),
        (RESPONSES, WebSearch(), {"type": "web_search"}),
        (
            RESPONSES,
            WebSearch(blocked_domains="a.org"),
            {"type": "web_search", "filters": {"blocked_domains": ["a.org"]}},
        ),
        (RESPONSES, CodeExecution(), {"type": "code_interpreter", "container": {"type": "auto"}}),
        (
            RESPONSES,
            FileSearch("vs_1", max_results=4),
            {"type": "file_search", "vector_store_ids": ["vs_1"], "max_num_results": 4},
        ),
        (
            RESPONSES,
            ImageGeneration(size="1024x1024"),
            {"type": "image_generation", "size": "1024x1024"},
        ),
        (
            RESPONSES,
            McpConnector("docs", "https://a.org/mcp", authorization="t", allowed_tools="find"),
            {
                "type": "mcp",
                "server_label": "docs",
                "server_url": "https://a.org/mcp",
                "require_approval": "never",
                "authorization": "t",
                "allowed_tools": ["find"],
            },
        ),
        (GEMINI, WebSearch(), {"googleSearch": {}}),
        (
            GEMINI,
            McpConnector("docs", "https://a.org/mcp"),
            {
                "mcpServers": [
                    {"name": "docs", "streamableHttpTransport": {"url": "https://a.org/mcp"}}
                ]
            },
        ),
        (GEMINI, WebFetch(), {"urlContext": {}}),
        (GEMINI, CodeExecution(), {"codeExecution": {}}),
        (
            GEMINI,
            FileSearch(["fileSearchStores/a"], max_results=2),
            {"fileSearch": {"fileSearchStoreNames": ["fileSearchStores/a"], "topK": 2}},
        ),
        (
            GEMINI,
            McpConnector("docs", "https://a.org/mcp", authorization="t"),
            {
                "mcpServers": [
                    {
                        "name": "docs",
                        "streamableHttpTransport": {
                            "url": "https://a.org/mcp",
                            "headers": {"Authorization": "Bearer t"},
                        },
                    }
                ]
            },
        ),
    ],
    ids=lambda value: value.provider if isinstance(value, ChatModel) else "",
)
def test_tool_of_the_provider(model: ChatModel, tool: ServerTool, sent: Any) -> None:
    """Each API gets the tool in its own form, also if there is a fallback."""
    assert tools_of(model, tool) == [sent]


def test_tools_of_provider_and_application() -> None:
    """The provider's tools come after functions, and those given in its own format."""
    found = tools_of(RESPONSES, WebSearch(), search, server_tools=[{"type": "custom", "name": "c"}])

    assert [each["type"] for each in found] == ["function", "custom", "web_search"]


@pytest.mark.parametrize(
    ("model", "tool", "reason"),
    [
        (OpenAIChatModel("gpt-5.4", api_key="k"), WebSearch(), "it has no such tool"),
        (OllamaChatModel("qwen3"), CodeExecution(), "it has no such tool"),
        (RESPONSES, WebFetch(), "it has no such tool"),
        (RESPONSES, WebSearch(max_uses=1), "no maximum number of searches"),
        (ANTHROPIC, ImageGeneration(), "it has no such tool"),
        (ANTHROPIC, WebSearch(allowed_domains="a", blocked_domains="b"), "either allowed or"),
        (GEMINI, WebSearch(max_uses=1), "neither to domains nor in number"),
        (GEMINI, McpConnector("a", "https://a.org", allowed_tools="b"), "all tools of a server"),
    ],
    ids=lambda value: value.provider if isinstance(value, ChatModel) else "",
)
def test_tool_that_the_provider_lacks(model: ChatModel, tool: ServerTool, reason: str) -> None:
    """Without a fallback, nothing is sent; the error shows how to give one."""
    with pytest.raises(UnsupportedToolError, match=reason) as caught:
        tools_of(model, tool)

    assert caught.value.tool == tool.name
    assert f"{type(tool).__name__}(..., fallback=" in str(caught.value)


def test_gemini_before_3_takes_no_own_tools_beside_functions() -> None:
    """There, the fallback is offered; since Gemini 3, both are possible."""
    with_fallback = WebSearch(fallback=search)

    def look() -> str:
        """Look."""
        return ""

    (functions,) = tools_of(GEMINI, with_fallback, look)
    assert [each["name"] for each in functions["functionDeclarations"]] == ["search", "look"]
    both = tools_of(GEMINI_3, with_fallback, look)
    assert [next(iter(each)) for each in both] == ["functionDeclarations", "googleSearch"]
    with pytest.raises(UnsupportedToolError, match="before Gemini 3"):
        tools_of(GEMINI, WebSearch(), look)


def test_gemini_is_told_that_both_kinds_are_offered() -> None:
    """Gemini 3 requires a flag for its tools together with functions."""
    options = GEMINI_3.options.mutate(tool_callbacks=tool_callbacks(WebSearch(), search))
    both = body_of(GEMINI_3, Prompt("x", options))
    alone = body_of(
        GEMINI_3, Prompt("x", options.mutate(tool_callbacks=tool_callbacks(WebSearch())))
    )

    assert both["toolConfig"] == {"includeServerSideToolInvocations": True}
    assert "toolConfig" not in alone


def test_mcp_servers_of_anthropic() -> None:
    """The servers are a field of their own, and a beta feature."""
    tool = McpConnector("docs", "https://a.org/mcp", authorization="t")
    options = AnthropicChatOptions(betas="other").merge(
        ChatOptions(tool_callbacks=tool_callbacks(tool))
    )
    body = body_of(ANTHROPIC, Prompt("x", ANTHROPIC.options.merge(options)))

    assert body["mcp_servers"] == [
        {"type": "url", "name": "docs", "url": "https://a.org/mcp", "authorization_token": "t"}
    ]
    assert ANTHROPIC._headers(options) == {"anthropic-beta": "other,mcp-client-2025-11-20"}
    assert "authorization" not in repr(tool)


def test_fallback_runs_with_any_model(ask: Ask, chat_server: Callable[..., ChatServer]) -> None:
    """A model without the tool calls the function in its place."""
    asks = completion(None, ("c1", "search", json.dumps({"query": "news"})))
    server = chat_server(asks, "Done.")
    with compatible_model("vllm", "m", base_url=server.url) as model:
        asked = ask(ChatClient.create(model).prompt("?").tools(WebSearch(fallback=search)))

    assert asked.text == "Done."
    assert [each["function"]["name"] for each in server.requests[0]["tools"]] == ["search"]
    assert server.requests[1]["messages"][-1]["content"] == "found news"


def test_tool_choice_of_a_tool_of_the_provider() -> None:
    """A tool of the provider can be forced by its name, or by its fallback's."""
    body = body_of(
        RESPONSES,
        Prompt(
            "x",
            RESPONSES.options.mutate(
                tool_callbacks=tool_callbacks(WebSearch()), tool_choice="web_search"
            ),
        ),
    )

    assert body["tool_choice"] == {"type": "web_search"}


def test_call_without_a_fallback_is_an_error_for_the_model(ask: Ask) -> None:
    """A model may write a call of a tool that only its provider can run."""
    model = ScriptedModel(call("web_search"), "I cannot.")

    asked = ask(ChatClient.create(model).prompt("?").tools(WebSearch()))

    assert asked.text == "I cannot."
    assert "web_search runs at the provider" in asked.executions[0].response.data


def test_fallback_is_one_tool() -> None:
    """A provider of several tools, or any other object, is no fallback."""
    provider: Any = McpToolCallbackProvider(McpServer.http("a", "https://a.org"))
    with pytest.raises(ToolDefinitionError, match="must be one tool"):
        tool_callbacks(WebSearch(fallback=provider))


def test_arguments_of_a_fallback_are_read() -> None:
    """Approval shows the arguments of the fallback; there are none without it."""
    (tool,) = tool_callbacks(WebSearch(fallback=search))

    assert getattr(tool, "read_arguments")('{"query": "a"}') == {"query": "a"}  # noqa: B009
    assert WebSearch().read_arguments("{}") is None
    assert tool.metadata.always_visible
