"""Skills: instructions that the model reads when it needs them, and their tools."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from chatclient import ChatClient, Prompt, ToolContext, ToolResponseMessage, tool
from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor
from chatclient.advisors.tool_search.advisor import ToolSearchToolCallingAdvisor
from chatclient.chain.chain import TOOL_CALLING_ORDER
from chatclient.chat.serialization import message_from_dict, message_to_dict
from chatclient.chat.tool import ACTIVATED_SKILL, ToolMetadata
from chatclient.errors import DuplicateToolError, ToolDefinitionError, UsageError
from chatclient.memory import InMemoryChatMemoryRepository, MessageWindowChatMemory
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import FunctionToolCallback
from chatclient.tools.search import KeywordToolIndex
from chatclient.tools.skills import Skill, Skills
from tests.modes.test_tool_calling import client_of, results


@tool(effect="read")
def measure(room: str) -> str:
    """Measure a room."""
    return f"{room}: 20 square metres"


@tool
def order_paint(litres: int) -> str:
    """Order paint."""
    return f"{litres} litres are on their way"


@tool(effect="read")
def weather() -> str:
    """Return a forecast."""
    return "dry"


PAINTING = Skill(
    "painting",
    "How to paint rooms & halls.",
    "Measure, then order a litre for each 5 square metres.",
    {"colours.md": "White or blue.", "tools/brush.md": "A wide one."},
    (measure, order_paint),
)
CLEANING = Skill("cleaning", "How to clean.", "Use soap.", tools=(measure,))


def offered(prompt: Prompt) -> list[str]:
    return [callback.definition.name for callback in prompt.options.tool_callbacks or ()]


def activate(name: str) -> Any:
    return call("activate_skill", json.dumps({"skill_name": name}))


def read(name: str, path: str) -> Any:
    arguments = json.dumps({"skill_name": name, "relative_path": path})
    return call("read_skill_resource", arguments)


MANY = [
    FunctionToolCallback(weather, name=f"weather_{n}", description="Tell it.") for n in range(20)
]
BEFORE = ["weather", "activate_skill", "read_skill_resource"]


@pytest.mark.feature("skills-tool-provider")
def test_a_skill_brings_its_instructions_and_tools(ask: Ask) -> None:
    """The model reads the instructions, and the skill's tools are offered afterwards."""
    model = ScriptedModel(
        activate("painting"),
        call("measure", '{"room": "hall"}'),
        call("order_paint", '{"litres": 4}'),
        "done",
    )
    result = ask(client_of(model, weather, Skills(PAINTING, CLEANING)).prompt("Paint the hall"))

    after = [*BEFORE, "measure", "order_paint"]
    assert [offered(prompt) for prompt in model.prompts] == [BEFORE, after, after, after]
    (instructions,) = results(model.prompts[1])
    assert instructions == (
        "Measure, then order a litre for each 5 square metres.\n\n"
        "Files, to be read with read_skill_resource:\n- colours.md\n- tools/brush.md"
    )
    assert results(model.prompts[3]) == ["4 litres are on their way"]
    assert result.text == "done"


@pytest.mark.feature("skills-format-available-skills-system")
def test_the_tool_lists_the_skills(ask: Ask) -> None:
    """Names and descriptions come with the tool that reads them, resources only if there are."""
    model = ScriptedModel("done")
    ask(client_of(model, Skills(CLEANING)).prompt("x"))

    callbacks = list(model.prompts[0].options.tool_callbacks or ())
    assert [callback.definition.name for callback in callbacks] == ["activate_skill"]
    assert callbacks[0].definition.description.endswith("Skills:\n- cleaning: How to clean.")
    assert callbacks[0].metadata.effect == "read"


@pytest.mark.feature("skills-activate-skill-read-resource")
@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (activate("cooking"), "There is no skill 'cooking'; available: painting, cleaning"),
        (activate(" Cleaning "), "Use soap."),
        (read("painting", "./colours.md"), "White or blue."),
        (
            read("painting", "x"),
            "The skill 'painting' has no file 'x'; it has: colours.md, tools/brush.md",
        ),
        (read("cleaning", "x"), "The skill 'cleaning' has no file 'x'; it has: none"),
        (read("x", "x"), "There is no skill 'x'; available: painting, cleaning"),
    ],
)
def test_what_models_ask_for_is_answered(asked: Any, told: str, ask: Ask) -> None:
    """An unknown name is an error result that lists the known ones, and the turn continues."""
    model = ScriptedModel(asked, "done")
    result = ask(client_of(model, Skills(PAINTING, CLEANING)).prompt("x"))

    assert results(model.prompts[1]) == [told]
    assert result.text == "done"


def test_skill_names_ignore_case(ask: Ask) -> None:
    """An exact name has precedence if two names differ in case only."""
    skills = Skills(Skill("PDF", "Read.", "Open it."), Skill("pdf", "Write.", "Close it."))
    model = ScriptedModel([activate("pdf"), activate("Pdf")], "done")
    ask(client_of(model, skills).prompt("x"))

    assert results(model.prompts[1]) == ["Close it.", "Open it."]


@pytest.mark.feature("skills-scoped-tools-appear-next")
def test_a_tool_of_two_skills_is_offered_once(ask: Ask) -> None:
    """Skills may share tools, and be activated again."""
    activations = [activate(name) for name in ("painting", "cleaning")]
    model = ScriptedModel(*activations, activations[0], "done")
    ask(client_of(model, Skills(PAINTING, CLEANING)).prompt("x"))

    assert offered(model.prompts[3])[2:] == ["measure", "order_paint"]
    assert model.prompts[2].options.tool_callbacks is model.prompts[3].options.tool_callbacks


def other_measure() -> str:
    """Measure in another way."""
    return "far"


OTHER = FunctionToolCallback(other_measure, name="measure")


@pytest.mark.feature("skills-different-tools-one-name")
def test_skills_with_different_tools_of_one_name() -> None:
    """They are an error, because one tool would replace the other."""
    other = Skill("sewing", "How to sew.", "Measure.", tools=(OTHER,))

    with pytest.raises(DuplicateToolError, match=r"measure.*other_measure"):
        Skills(PAINTING, other)
    with pytest.raises(DuplicateToolError, match="activate_skill"):
        Skills(Skill("x", "x", "x", tools=(FunctionToolCallback(weather, name="activate_skill"),)))


@pytest.mark.feature("skills-different-tools-one-name")
def test_duplicate_tools_of_skills(ask: Ask) -> None:
    """They are reported before anything is sent, not during a turn."""
    model = ScriptedModel(activate("painting"), "done")
    with pytest.raises(DuplicateToolError, match="measure"):
        ask(client_of(model, OTHER, Skills(PAINTING)).prompt("x"))
    assert model.prompts == []

    builder = ChatClient.builder(model).default_tools(OTHER, Skills(PAINTING))
    ask(builder.duplicate_tools("first").build().prompt("x"))
    assert offered(model.prompts[1]) == ["measure", *BEFORE[1:], "order_paint"]


def test_a_skill_may_bring_a_tool_that_is_there_already(ask: Ask) -> None:
    """The same tool twice is not a duplicate."""
    model = ScriptedModel(activate("painting"), "done")
    ask(client_of(model, Skills(PAINTING), measure).prompt("x"))

    assert offered(model.prompts[0]) == [*BEFORE[1:], "measure"]
    assert sorted(offered(model.prompts[1])) == sorted([*BEFORE[1:], "measure", "order_paint"])


@pytest.mark.feature("skills-activation-lasts-while-message")
def test_a_skill_is_active_as_long_as_it_is_remembered(ask: Ask) -> None:
    """Its tools stay offered in the next turn of the conversation, and not in other ones."""
    memory = MessageWindowChatMemory(InMemoryChatMemoryRepository())
    model = ScriptedModel(
        activate("painting"),
        "Which room?",
        call("measure", '{"room": "hall"}'),
        "20 square metres",
        "Hello",
    )
    builder = ChatClient.builder(model).default_advisors(MessageChatMemoryAdvisor(memory))
    client = builder.default_tools(Skills(PAINTING)).build()
    ask(client.prompt("Paint").conversation("a"))
    result = ask(client.prompt("The hall").conversation("a"))
    ask(client.prompt("Hi").conversation("b"))

    assert [execution.is_error for execution in result.executions] == [False]
    assert "order_paint" in offered(model.prompts[2])
    assert "order_paint" not in offered(model.prompts[4])


@pytest.mark.feature("skills-activation-lasts-while-message")
def test_a_stored_conversation_keeps_its_skills() -> None:
    """The mark of an active skill is kept in JSON."""
    model = ScriptedModel(activate("painting"), "done")
    client_of(model, Skills(PAINTING)).prompt("x").call().content()
    answer = model.prompts[1].messages[-1]

    stored = message_from_dict(message_to_dict(answer))
    assert isinstance(stored, ToolResponseMessage)
    assert stored == answer
    assert stored.responses[0].metadata[ACTIVATED_SKILL] == "painting"


@pytest.mark.feature("skills-always-visible-scoped-tools")
@pytest.mark.parametrize("order", [TOOL_CALLING_ORDER - 100, TOOL_CALLING_ORDER + 100])
def test_skills_need_no_search(ask: Ask, order: int) -> None:
    """Under a tool search, skills and the tools of active ones are visible; all else is found."""
    memory = MessageWindowChatMemory(InMemoryChatMemoryRepository())
    model = ScriptedModel(activate("painting"), "Which?", "Hello")
    search = ToolSearchToolCallingAdvisor(KeywordToolIndex())
    builder = ChatClient.builder(model).default_tools(*MANY, Skills(PAINTING))
    remembering = MessageChatMemoryAdvisor(memory, order=order)
    client = builder.default_advisors(search, remembering).build()
    ask(client.prompt("Paint").conversation("a"))
    if order < TOOL_CALLING_ORDER:
        ask(client.prompt("The hall").conversation("a"))

    searched = ["toolSearchTool", "activate_skill", "read_skill_resource"]
    assert offered(model.prompts[0]) == searched
    for prompt in model.prompts[1:]:
        assert offered(prompt) == [*searched, "measure", "order_paint"]


@pytest.mark.feature("search-behavior-always-visible")
def test_a_tool_may_be_visible_always() -> None:
    """What `@tool(always_visible=True)` marks is not hidden by a tool search."""

    @tool(always_visible=True)
    def panic() -> str:
        """Call for help."""
        return "coming"

    model = ScriptedModel("done")
    search = ToolSearchToolCallingAdvisor(KeywordToolIndex())
    builder = ChatClient.builder(model).default_tools(*MANY, panic).default_advisors(search)
    builder.build().prompt("x").call().content()

    assert offered(model.prompts[0]) == ["toolSearchTool", "panic"]


async def test_a_tool_of_a_skill_is_the_tool_itself() -> None:
    """Metadata and function are the tool's, except for its visibility."""
    skills = Skills(CLEANING)
    (tool_,) = skills._scoped["cleaning"]

    assert tool_.metadata == ToolMetadata(effect="read", always_visible=True)
    assert tool_.function is measure
    result = await tool_.invoke('{"room": "hall"}', ToolContext())
    assert result.text == "hall: 20 square metres"


@pytest.mark.feature("skills-format-available-skills-system")
def test_the_listing_is_xml() -> None:
    """Names and descriptions are escaped."""
    skill = Skill("a<b", "c & d", "e")
    assert Skills(skill).listing == (
        "<available_skills>\n<skill><name>a&lt;b</name><description>c &amp; d</description></skill>"
        "\n</available_skills>"
    )


def test_a_folder_without_skills(tmp_path: Path) -> None:
    """The error names it; the folder of one skill is not a folder of skills."""
    (tmp_path / "SKILL.md").write_text("---\nname: a\ndescription: b\n---\nc")
    with pytest.raises(UsageError, match=r"no folder in .* has a SKILL\.md; one skill is Skill\."):
        Skills.from_folder(tmp_path)


def test_bad_skills_are_refused() -> None:
    """Skills without a name, none at all, two of one name, and what is no tool."""
    with pytest.raises(UsageError, match="its description; that of 'a' is empty"):
        Skill("a", " ", "b")
    with pytest.raises(UsageError, match="its name"):
        Skill("", "a", "b")
    with pytest.raises(UsageError, match="there must be at least one"):
        Skills()
    with pytest.raises(UsageError, match="a name of its own"):
        Skills(CLEANING, CLEANING)
    with pytest.raises(ToolDefinitionError, match="not a source of tools"):
        Skills(Skill("a", "b", "c", tools=(1,)))


# --- folders ---


def write(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "SKILL.md").write_text(text, encoding="utf-8")
    return folder


TEXT = """---
name: painting
description: >
  How to paint
  rooms.
license: MIT
---
# Paint
Stir.
"""


@pytest.mark.feature("skills-file-system-loader-skill")
def test_a_folder_holds_a_skill(tmp_path: Path) -> None:
    """Front matter, instructions and resources are read; what is no text is left out."""
    folder = write(tmp_path / "painting", TEXT)
    (folder / "colours").mkdir()
    (folder / "colours" / "list.md").write_text("White.")
    (folder / "empty.md").write_text(" \n")
    (folder / "picture.png").write_bytes(b"\x89PNG\xff")
    (folder / "zeros.bin").write_bytes(b"a\0b")
    (folder / "scripts").mkdir()
    (folder / "scripts" / "run.sh").write_text("rm -r .")
    (tmp_path / "secret.txt").write_text("secret")
    (folder / ".env").write_text("TOKEN=secret")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("[core]")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")

    skill = Skill.from_folder(folder, tools=[measure])
    assert (skill.name, skill.description.strip()) == ("painting", "How to paint rooms.")
    assert skill.instructions == "# Paint\nStir."
    assert dict(skill.resources) == {"colours/list.md": "White."}
    assert skill.tools == (measure,)


def test_what_is_no_text_costs_no_memory(tmp_path: Path) -> None:
    """A large binary file is not read completely."""
    folder = write(tmp_path / "painting", TEXT)
    with (folder / "film.mp4").open("wb") as film:
        film.write(b"\0\0\0\x20ftyp")
        film.truncate(2**40)  # takes no room on the disk

    assert Skill.from_folder(folder).resources == {}


@pytest.mark.feature("skills-file-system-loader-skill")
def test_a_folder_holds_skills(tmp_path: Path) -> None:
    """Each folder with the file is one, in the order of their names."""
    write(tmp_path / "b", TEXT)
    write(tmp_path / "a", TEXT.replace("painting", "cleaning"))
    (tmp_path / "c").mkdir()

    assert list(Skills.from_folder(tmp_path).skills) == ["cleaning", "painting"]


@pytest.mark.feature("skills-file-system-loader-skill")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("no front matter", "does not say its name and description"),
        ("---\nname: a\n---\nb", "does not say its description"),
        ("---\n- a\n---\nb", "does not say its name and description"),
        ("---\nname: a\ndescription: b\n", "does not say its name and description"),
        ("---\nname: [\n---\nb", "no valid YAML"),
        ("---\nname: a\ndescription: b\n---\n", "its instructions; that of 'a' is empty"),
    ],
)
def test_a_folder_that_holds_no_skill_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    """The error has the problem and the file."""
    with pytest.raises(UsageError, match=problem):
        Skill.from_folder(write(tmp_path, text))


def test_what_folders_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file, and the extra."""
    with pytest.raises(UsageError, match=r"has no SKILL\.md"):
        Skill.from_folder(tmp_path)
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(UsageError, match=r"chatclient\[skills\]"):
        Skill.from_folder(write(tmp_path, TEXT))
