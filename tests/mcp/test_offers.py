"""Resources, prompts and completions of MCP servers for the application."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from mcp.client._memory import InMemoryTransport
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.prompts.base import AssistantMessage as Reply, UserMessage as Question
from mcp_types import Annotations, Completion, PromptReference

from chatclient import AssistantMessage, ChatClient, Media, UserMessage
from chatclient.errors import McpServerError, UsageError
from chatclient.mcp import (
    McpCompletion,
    McpContent,
    McpLimits,
    McpPrompt,
    McpPromptArgument,
    McpResource,
    McpResourceTemplate,
    McpServer,
    McpToolCallbackProvider,
)
from chatclient.testing import Ask, ScriptedModel, call
from tests.support.mcp_setup import ask_with_tools, peer

PAGE = "ui://library/shelf.html"


def library() -> MCPServer:
    """Return a server of the SDK."""
    server = MCPServer("library")

    @server.resource("books://index", title="Index", mime_type="text/plain")
    def index() -> str:
        """All books."""
        return "Emma, Ulysses"

    @server.resource(PAGE, mime_type="text/html;profile=mcp-app")
    def page() -> str:
        """The page of the shelf."""
        return "<p>shelf</p>"

    @server.resource(
        "books://cover", mime_type="image/png", annotations=Annotations(audience=["user"])
    )
    def cover() -> bytes:
        """The cover."""
        return b"\x89PNG"

    @server.resource("books://{title}/text")
    def text(title: str) -> str:
        """The text of a book."""
        return f"The text of {title}"

    @server.prompt(title="Review")
    def review(title: str, tone: str = "kind") -> list[Any]:
        """Review a book."""
        return [Question(f"Review {title}, {tone}."), Reply("Gladly.")]

    @server.tool(meta={"ui": {"resourceUri": PAGE}})
    def shelf() -> str:
        """Show the shelf."""
        return "shown"

    async def complete(ref: Any, argument: Any, context: Any) -> Completion:
        if isinstance(ref, PromptReference) and argument.name == "tone":
            of = (context.arguments or {}).get("title", "?") if context else "?"
            return Completion(values=[f"{argument.value}ind to {of}"], total=2, has_more=True)
        return Completion(values=["Emma"])

    completing: Any = server.completion  # has no types
    completing()(complete)
    return server


@pytest.fixture
def provider() -> Iterator[McpToolCallbackProvider]:
    server = library()
    with McpToolCallbackProvider(McpServer("library", lambda: InMemoryTransport(server))) as found:
        yield found


@pytest.fixture(params=["blocking", "async"])
def get(request: pytest.FixtureRequest, provider: McpToolCallbackProvider) -> Any:
    """Call a method of the provider, or its asynchronous twin."""

    def call(name: str, *args: Any, **named: Any) -> Any:
        if request.param == "blocking":
            return getattr(provider, name)(*args, **named)
        return asyncio.run(getattr(provider, f"a{name}")(*args, **named))

    return call


def test_resources(get: Any) -> None:
    """All resources are listed, also pages and what is for the user only, with their metadata."""
    found = {each.uri: each for each in get("resources")}

    assert found["books://index"] == McpResource(
        "library", "books://index", "index", "Index", "All books.", "text/plain"
    )
    assert set(found) == {"books://index", PAGE, "books://cover"}
    assert found["books://cover"].metadata == {"annotations": {"audience": ["user"]}}
    (template,) = get("resource_templates")
    assert (template.uri_template, template.name) == ("books://{title}/text", "text")


def test_read_resource(get: Any) -> None:
    """A resource has text or bytes, which can be a part of a message."""
    (text,) = get("read_resource", "library", "books://Emma/text")
    (cover,) = get("read_resource", "library", "books://cover")

    assert text.data == text.part == "The text of Emma"
    assert cover == McpContent("books://cover", b"\x89PNG", "image/png")
    assert cover.part == Media("image/png", b"\x89PNG", name="cover")


def test_prompts(get: Any) -> None:
    """A prompt becomes messages of a request."""
    (prompt,) = get("prompts")
    arguments = (McpPromptArgument("title", None, True), McpPromptArgument("tone"))
    assert prompt == McpPrompt(
        "library", "review", "Review", "Review a book.", arguments, prompt.metadata
    )

    messages = get("get_prompt", "library", "review", {"title": "Emma"})

    assert messages == [UserMessage("Review Emma, kind."), AssistantMessage("Gladly.")]
    client = ChatClient.create(model := ScriptedModel("A good book."))
    assert client.prompt("Go on").messages(*messages).call().content() == "A good book."
    assert model.prompts[0].messages[0] == messages[0]


def test_completions(get: Any) -> None:
    """The server proposes values, which may depend on other arguments."""
    (prompt,), (template,) = get("prompts"), get("resource_templates")

    tones = get("complete", prompt, "tone", "k", given={"title": "Emma"})
    titles = get("complete", template, "title", "E")

    assert tones == McpCompletion(("kind to Emma",), 2, True)
    assert titles == McpCompletion(("Emma",))


def test_errors(get: Any) -> None:
    """Errors are those of the application: an unknown server, and what the server refuses."""
    with pytest.raises(UsageError, match="there is library"):
        get("read_resource", "shop", "books://index")
    with pytest.raises(McpServerError, match="'library' refuses") as raised:
        get("read_resource", "library", "books://nowhere/else/at/all")
    assert raised.value.server == "library"
    with pytest.raises(McpServerError, match="refuses"):
        get("get_prompt", "library", "unknown")


def test_server_without_offers() -> None:
    """A server without prompts and completions has none; an optional one that fails is left out."""
    dead = McpServer.stdio("dead", "/does/not/exist", required=False)
    with McpToolCallbackProvider(peer(fault="resources"), dead) as provider:
        assert [each.uri for each in provider.resources()] == ["file:///a"]
        assert provider.resource_templates() == []
        assert provider.prompts() == []
        template = McpResourceTemplate("peer", "file:///{a}", "a")
        assert provider.complete(template, "a", "") == McpCompletion(())
        assert provider.read_resource("peer", "file:///a")[0].data == "the whole resource"


def test_required_server() -> None:
    """A required server that cannot be reached fails the listing."""
    dead = McpServer.stdio("dead", "/does/not/exist")
    with McpToolCallbackProvider(dead) as provider, pytest.raises(McpServerError, match="dead"):
        provider.resources()


def test_limits() -> None:
    """What a server sends is limited."""
    server = library()
    small = McpServer(
        "library", lambda: InMemoryTransport(server), limits=McpLimits(result_size=10)
    )
    with McpToolCallbackProvider(small) as provider:
        with pytest.raises(McpServerError, match="too large"):
            provider.read_resource("library", "books://index")
        with pytest.raises(McpServerError, match="too large"):
            provider.get_prompt("library", "review", {"title": "Emma"})


def test_page_of_a_tool(ask: Ask, provider: McpToolCallbackProvider) -> None:
    """The application sees which page a tool has, and reads it."""
    _, model = ask_with_tools(ask, provider, call("shelf"), "Done.")

    (tool,) = model.prompts[0].options.tool_callbacks
    origin = tool.definition.metadata["mcp"]
    (page,) = provider.read_resource(origin["server"], origin["_meta"]["ui"]["resourceUri"])
    assert page.data == "<p>shelf</p>"
    assert page.mime_type == "text/html;profile=mcp-app"


def test_background_tools(ask: Ask) -> None:
    """Tools of a server run in the background if the server's settings name them."""
    server = library()
    shop = McpServer("library", lambda: InMemoryTransport(server), background=["shelf"])
    with McpToolCallbackProvider(shop) as provider:
        result, model = ask_with_tools(ask, provider, call("shelf", id="s"), "Soon.", "Done.")

    texts = "".join(message.text for message in model.prompts[-1].messages)
    assert "Result of 'shelf', started with the id 's':\nshown" in texts
    assert [e.response.data for e in result.executions] == ["shown"]
