"""Conversion of results between MCP servers and tools."""

from typing import Any

import pytest

pytest.importorskip("mcp")

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from chatclient.chat.messages import Media
from chatclient.chat.tool import OWN_METADATA, ToolResult
from chatclient.errors import ToolError
from chatclient.mcp.content import from_mcp_result, to_mcp_result

DATA = "AQID"  # bytes 1, 2, 3


def result_of(*content: Any, **more: Any) -> ToolResult:
    return from_mcp_result(CallToolResult(content=list(content), **more))


@pytest.mark.parametrize(
    ("block", "text", "media"),
    [
        (TextContent(text="hello"), "hello", ()),
        (ImageContent(data=DATA, mime_type="image/png"), "", (Media("image/png", b"\1\2\3"),)),
        (AudioContent(data=DATA, mime_type="audio/wav"), "", (Media("audio/wav", b"\1\2\3"),)),
        (
            EmbeddedResource(resource=TextResourceContents(uri="file:///a.txt", text="inside")),
            "inside",
            (),
        ),
        (
            EmbeddedResource(resource=BlobResourceContents(uri="file:///a/b.bin", blob=DATA)),
            "",
            (Media("application/octet-stream", b"\1\2\3", name="b.bin"),),
        ),
        (
            ResourceLink(name="a", uri="file:///a", title="An A", description="The first letter"),
            "[An A](file:///a): The first letter",
            (),
        ),
        (ResourceLink(name="a", uri="file:///a"), "[a](file:///a)", ()),
    ],
)
def test_content_types(block: Any, text: str, media: tuple[Media, ...]) -> None:
    """Texts become text, other content media."""
    result = result_of(block)
    assert (result.text, result.media) == (text, media)


@pytest.mark.parametrize(
    ("text", "data", "expected"),
    [
        ("sunny", {"weather": "sunny"}, 'sunny\n{"weather": "sunny"}'),
        ('{"weather": "sunny"}', {"weather": "sunny"}, '{"weather": "sunny"}'),
        ("3", {"result": 3}, "3"),
        ("three", {"result": "three"}, "three"),
        ("", {"result": "é"}, '{"result": "é"}'),
    ],
)
def test_structured_content(text: str, data: Any, expected: str) -> None:
    """It is JSON unless the text is equal, and always the value."""
    content = [TextContent(text=text)] if text else []
    result = result_of(*content, structured_content=data, _meta={"cost": 1})
    assert (result.text, result.value, dict(result.metadata)) == (expected, data, {"cost": 1})


@pytest.mark.parametrize("key", sorted(OWN_METADATA))
def test_server_cannot_set_internal_metadata(key: str) -> None:
    """A server cannot mark a result as final or a skill as active."""
    result = result_of(TextContent(text="sunny"), _meta={"cost": 1, key: True})

    assert dict(result.metadata) == {"cost": 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [([TextContent(text="out of stock")], "out of stock"), ([], "does not say why")],
)
def test_failure(content: Any, message: str) -> None:
    """The model gets the server's message."""
    with pytest.raises(ToolError, match=message):
        result_of(*content, is_error=True)


def test_failure_with_content() -> None:
    """A failure keeps media and content for the application."""
    picture = ImageContent(data=DATA, mime_type="image/png")
    text = TextContent(text="no such button")
    with pytest.raises(ToolError) as raised:
        result_of(text, picture, structured_content={"n": 1}, _meta={"cost": 1}, is_error=True)

    error = raised.value
    assert str(error) == 'no such button\n{"n": 1}'
    assert error.media == (Media("image/png", b"\1\2\3"),)
    assert (error.metadata, error.value) == ({"cost": 1}, {"n": 1})


def test_server_cannot_set_reserved_keys() -> None:
    """A server cannot set the activated skill or executed arguments."""
    ours = {"activated_skill": "x", "failure": "x", "ran_with": None, "remark": "x", "step": True}

    assert dict(result_of(_meta={**ours, "cost": 1}).metadata) == {"cost": 1}


def test_invalid_base64() -> None:
    """Invalid base64 is a failure."""
    with pytest.raises(ToolError, match="base 64"):
        result_of(ImageContent(data="!", mime_type="image/png"))


@pytest.mark.parametrize("data", ["iVBORw==", "iVBORw", "iVBO\nRw==\n"])
def test_base64_forms(data: str) -> None:
    """Line breaks and missing padding are accepted."""
    result = result_of(ImageContent(data=data, mime_type="image/png"))

    assert result.media == (Media("image/png", b"\x89PNG"),)


def test_served_content_types() -> None:
    """Each medium becomes its type of content."""
    media = (
        Media("image/png", b"\1\2\3"),
        Media("audio/wav", b"\1\2\3"),
        Media("application/pdf", b"\1\2\3", name="a.pdf"),
        Media("application/pdf", b"\1\2\3"),
        Media("image/png", "https://example.org/a.png"),
    )
    image, sound, named, nameless, link = to_mcp_result(ToolResult("", media)).content
    assert isinstance(image, ImageContent)
    assert isinstance(sound, AudioContent)
    assert isinstance(named, EmbeddedResource)
    assert isinstance(nameless, EmbeddedResource)
    assert isinstance(link, ResourceLink)
    assert image.data == sound.data == DATA
    assert [named.resource.uri, nameless.resource.uri] == [
        "attachment:///a.pdf",
        "attachment:///content",
    ]
    assert link.uri == "https://example.org/a.png"


def test_served_result_without_content() -> None:
    """An empty result becomes text, and a failure is described."""
    answer = to_mcp_result(ToolResult("", is_error=True))
    assert [block.type for block in answer.content] == ["text"]
    assert answer.is_error
