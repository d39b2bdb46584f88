"""What MCP servers and our tools answer, each in the other's form."""

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

from chatclient.errors import ToolError
from chatclient.messages import Media
from chatclient.tool import OWN_METADATA, ToolResult
from chatclient.tools.mcp.content import answer_of, result_of

DATA = "AQID"  # the bytes 1, 2, 3


def answered(*content: Any, **more: Any) -> ToolResult:
    return result_of(CallToolResult(content=list(content), **more))


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
def test_every_kind_of_content(block: Any, text: str, media: tuple[Media, ...]) -> None:
    """Texts are told, media are shown."""
    result = answered(block)
    assert (result.text, result.media) == (text, media)


@pytest.mark.parametrize(
    ("text", "data", "told"),
    [
        ("sunny", {"weather": "sunny"}, 'sunny\n{"weather": "sunny"}'),
        ('{"weather": "sunny"}', {"weather": "sunny"}, '{"weather": "sunny"}'),
        ("3", {"result": 3}, "3"),
        ("three", {"result": "three"}, "three"),
        ("", {"result": "é"}, '{"result": "é"}'),
    ],
)
def test_data_is_told_once(text: str, data: Any, told: str) -> None:
    """As JSON, unless the text says the same; it is the value in any case."""
    content = [TextContent(text=text)] if text else []
    result = answered(*content, structured_content=data, _meta={"cost": 1})
    assert (result.text, result.value, dict(result.metadata)) == (told, data, {"cost": 1})


@pytest.mark.parametrize("key", sorted(OWN_METADATA))
def test_a_server_has_no_word_in_what_the_library_notes(key: str) -> None:
    """Such as that its answer is final, or that a skill with its tools is in use."""
    result = answered(TextContent(text="sunny"), _meta={"cost": 1, key: True})

    assert dict(result.metadata) == {"cost": 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [([TextContent(text="out of stock")], "out of stock"), ([], "does not say why")],
)
def test_a_failure_is_the_tools(content: Any, message: str) -> None:
    """The model reads the server's own words."""
    with pytest.raises(ToolError, match=message):
        answered(*content, is_error=True)


def test_a_failure_keeps_what_came_with_it() -> None:
    """A picture of what went wrong, and what is for the application only."""
    picture = ImageContent(data=DATA, mime_type="image/png")
    text = TextContent(text="no such button")
    with pytest.raises(ToolError) as raised:
        answered(text, picture, structured_content={"n": 1}, _meta={"cost": 1}, is_error=True)

    error = raised.value
    assert str(error) == 'no such button\n{"n": 1}'
    assert error.media == (Media("image/png", b"\1\2\3"),)
    assert (error.metadata, error.value) == ({"cost": 1}, {"n": 1})


def test_a_server_cannot_say_what_only_the_library_says() -> None:
    """Such as which skill was activated, or what a tool was really run with."""
    ours = {"activated_skill": "x", "failure": "x", "ran_with": None, "remark": "x", "step": True}

    assert dict(answered(_meta={**ours, "cost": 1}).metadata) == {"cost": 1}


def test_garbage_is_a_failure() -> None:
    """What is no base 64 cannot be shown."""
    with pytest.raises(ToolError, match="base 64"):
        answered(ImageContent(data="!", mime_type="image/png"))


@pytest.mark.parametrize("data", ["iVBORw==", "iVBORw", "iVBO\nRw==\n"])
def test_base_64_comes_in_several_forms(data: str) -> None:
    """With line breaks, or without padding."""
    result = answered(ImageContent(data=data, mime_type="image/png"))

    assert result.media == (Media("image/png", b"\x89PNG"),)


def test_what_our_tools_answer() -> None:
    """Each medium becomes the kind of content it is."""
    media = (
        Media("image/png", b"\1\2\3"),
        Media("audio/wav", b"\1\2\3"),
        Media("application/pdf", b"\1\2\3", name="a.pdf"),
        Media("application/pdf", b"\1\2\3"),
        Media("image/png", "https://example.org/a.png"),
    )
    image, sound, named, nameless, link = answer_of(ToolResult("", media)).content
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


def test_an_answer_without_content_is_a_text() -> None:
    """Clients want something; and they are told what failed."""
    answer = answer_of(ToolResult("", is_error=True))
    assert [block.type for block in answer.content] == ["text"]
    assert answer.is_error
