"""Every code block of the README and the docs is run; what they claim about names holds."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from chatclient import Prompt, UserMessage, errors
from chatclient.testing import Answer, ScriptedModel, call

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    """Return where *page* is, below `docs/` if it is there."""
    return page.relative_to(ROOT).as_posix().removeprefix("docs/")


def blocks(page: Path) -> Iterator[tuple[int, str]]:
    """Yield the code blocks of *page* with the line they begin at."""
    text = page.read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        yield text[: match.start()].count("\n") + 1, match.group(1)


def example(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    """Return a value that satisfies *schema*, as plain as can be."""
    if "$ref" in schema:
        return example(root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    match schema.get("type"):
        case "object":
            properties = schema.get("properties", {})
            return {name: example(properties[name], root) for name in schema.get("required", ())}
        case "integer" | "number":
            return 1
        case "boolean":
            return True
        case "array":
            return [example(schema["items"], root)] if schema.get("items") else []
        case _:
            return "Rome"


def told_schema(prompt: Prompt) -> Any:
    """Return the schema that a request for an entity tells the model in words, if it is one."""
    told = [m.text.partition("JSON Schema:\n")[2] for m in prompt.messages if m.role == "user"]
    return json.loads(told[-1]) if told and told[-1] else None


def play(prompt: Prompt) -> Answer:
    """Call the first tool there is, then answer: what the pages expect of a model."""
    callbacks = prompt.options.tool_callbacks
    asks = isinstance(prompt.messages[-1], UserMessage)
    if callbacks and asks and prompt.options.tool_choice != "none":
        definition = callbacks[0].definition
        schema = definition.input_schema
        return call(definition.name, json.dumps(example(schema, schema)))
    schema = prompt.options.output_schema or told_schema(prompt)
    return "It is done." if schema is None else json.dumps(example(schema, schema))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_code_of_a_page_runs(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page run one after another, with a scripted model as the local one."""
    for module in ("client", "configuration"):
        monkeypatch.setattr(f"chatclient.{module}.chat_model", lambda name: ScriptedModel(play))
    namespace: dict[str, Any] = {"__name__": page.stem}
    for line, code in blocks(page):
        exec(compile("\n" * line + code, str(page), "exec"), namespace)


FEATURES = ROOT / "docs" / "features.md"


def test_every_row_of_the_feature_table_names_tests_that_exist() -> None:
    """The table says where each feature is proved; the proof is there."""
    known = {
        f"{file.stem}::{name}"
        for file in (ROOT / "tests").glob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE)
    }
    named = re.findall(r"`(test_\w+::test_\w+)`", FEATURES.read_text(encoding="utf-8"))

    assert len(named) > 100
    assert [name for name in named if name not in known] == []


def test_every_row_of_the_feature_table_is_proved() -> None:
    """A feature without a test is a promise; only what is missing on purpose needs none."""
    rows = re.findall(r"^\|(?! ?---).+\|$", FEATURES.read_text(encoding="utf-8"), re.MULTILINE)
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]

    assert {len(row) for row in cells} == {4}
    assert [
        row
        for row in cells
        if "`test_" not in row[3] and row[3] != "proved by" and not row[2].startswith("none:")
    ] == []


def test_links_between_pages_lead_somewhere() -> None:
    """No page points at a file that is not there."""
    for page in PAGES:
        for target in re.findall(r"\]\(([\w/.-]+\.md)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{name_of(page)}: {target}"


def test_every_page_is_in_the_navigation() -> None:
    """A page that nobody can find is not there; `mkdocs --strict` would only mention it."""
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"([\w/-]+\.md)$", nav, re.MULTILINE)

    assert sorted(listed) == sorted(name_of(page) for page in PAGES if page.name != "README.md")


def test_code_is_as_wide_as_the_site_shows_it() -> None:
    """Nobody has to scroll sideways to read an example."""
    wide = [
        f"{name_of(page)}:{line + number}"
        for page in PAGES
        for line, code in blocks(page)
        for number, text in enumerate(code.splitlines(), 1)
        if len(text) > 85
    ]
    assert wide == []


def test_every_error_is_in_the_tree_of_the_docs() -> None:
    """The page of errors shows all of them, and none that there is not."""
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    tree = page.partition("```text\n")[2].partition("```")[0]
    shown = re.findall(r"^(?:[│ ]*[├└]── )?(\w+Error)\b", tree, re.MULTILINE)

    assert sorted(shown) == sorted(name for name in vars(errors) if name.endswith("Error"))
    assert tree in str(errors.__doc__)
