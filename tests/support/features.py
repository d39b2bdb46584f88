"""Report of the features of Spring AI and LangChain4j and of the tests that show them.

`python -m tests.support.features` prints it as Markdown, from `tests/features.toml` and markers of
tests. A test names the rows that it proves: `@pytest.mark.feature("client-create")`.
"""

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT

TESTS = ROOT / "tests"
DATA = TESTS / "features.toml"
HEAD = "# Feature by feature\n"

Row = Mapping[str, str]
Marked = Mapping[str, Sequence[str]]
_Test = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class FeatureError(ValueError):
    """The rows of the data file and the markers of the tests do not agree."""


def report(data: Path = DATA, tests: Path = TESTS) -> str:
    """Return the Markdown text of the report.

    Raises:
        FeatureError: A row has no test or repeats an id, or a marker names no row.
    """
    content = tomllib.loads(data.read_text(encoding="utf-8"))
    sections = content["section"]
    marked = marked_tests(tests)
    rows = [row for section in sections for row in section.get("row", ())]
    problems = list(_problems(rows, marked))
    if problems:
        raise FeatureError("\n".join(problems))
    texts = [_section(section, marked) for section in sections]
    return "\n".join([HEAD, content["intro"], *texts])


def marked_tests(tests: Path) -> Marked:
    """Return the tests below *tests*, or their classes, that have a marker of a row.

    The files are parsed and not imported, so nothing that they need is installed.
    """
    marked: defaultdict[str, list[str]] = defaultdict(list)
    for file in sorted(tests.rglob("test_*.py")):
        source = file.read_text(encoding="utf-8")
        if "mark.feature(" not in source:
            continue
        name = file.relative_to(tests).as_posix()
        for node in ast.parse(source, str(file)).body:
            if isinstance(node, _Test):
                for row_id in _row_ids(node):
                    marked[row_id].append(f"{name}::{node.name}")
    return marked


def _row_ids(test: _Test) -> Iterator[str]:
    """Yield the row ids that the markers of *test* name."""
    for node in test.decorator_list:
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.feature":
            yield from (ast.literal_eval(argument) for argument in node.args)


def _problems(rows: Sequence[Row], marked: Marked) -> Iterator[str]:
    seen: set[str] = set()
    for row in rows:
        row_id = row["id"]
        if row_id in seen:
            yield f"two rows have the id {row_id!r}; give one of them another id"
        seen.add(row_id)
        if "here" in row and row_id not in marked:
            mark = f"@pytest.mark.feature({row_id!r})"
            yield f"row {row_id!r} has no test; mark a test with {mark}"
        if "here" not in row and row_id in marked:
            yield f"row {row_id!r} has a test; add `here`, its counterpart"
    for row_id, tests in marked.items():
        if row_id not in seen:
            yield f"{tests[0]}: no row has the id {row_id!r} of its marker"


def _section(section: Mapping[str, Any], marked: Marked) -> str:
    lines = [f"{'#' * section.get('level', 2)} {section['title']}", ""]
    if "text" in section:
        lines += [section["text"], ""]
    if "row" in section:
        lines += [
            _line([*section["columns"], "differs", "proved by"]),
            "|---" * 4 + "|",
        ]
    for row in section.get("row", ()):
        tests = " ".join(f"`{test}`" for test in marked.get(row["id"], ()))
        lines.append(_line([*(row.get(k, "") for k in ("reference", "here", "differs")), tests]))
    return "\n".join([*lines, ""])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


if __name__ == "__main__":
    print(report())  # noqa: T201
