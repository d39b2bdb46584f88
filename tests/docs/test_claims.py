"""Each claim of the pages on security and durable turns names the tests that show it.

A claim is a paragraph, an item of a list or a row of a table. The tests are in comments, which a
reader of the page does not see: `<!-- durable/test_turns.py::test_one ::test_two -->`, below
`tests/`. What claims nothing is marked with `<!-- no claim -->`; what was measured names its
program.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.support.paths import ROOT

FENCE = "```"
NAME = re.compile(r"(benchmarks/\w+\.py)|([\w/]+/test_\w+\.py)|::(\w+)")
EXAMPLE = """\
# Title

It works. <!-- docs/test_claims.py::test_claims -->

| what | default | test |
|---|---|---|
| this | on | `docs/test_claims.py` <!-- ::test_claims ::test_problems -->|

```python
code
```
- Measured. <!-- benchmarks/soak.py -->
- Look: <!-- no claim -->
"""


def claims(text: str) -> Iterator[str]:
    """Yield the lines of *text* that may claim something: each paragraph is a line."""
    fenced, lines = False, text.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith(FENCE):
            fenced = not fenced
        elif not (fenced or not line or line.startswith(("#", "|--")) or following[:3] == "|--"):
            yield line


@cache
def names_in(path: str) -> frozenset[str]:
    """Return the names of the tests, and classes of tests, of a file below `tests/`."""
    file = ROOT / "tests" / path
    if not file.exists():
        return frozenset()
    nodes = ast.parse(file.read_text(encoding="utf-8")).body
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return frozenset(n.name for n in nodes if isinstance(n, kinds) and n.name[:4].lower() == "test")


def problems(claim: str) -> Iterator[str]:
    """Yield what is wrong with the tests that *claim* names."""
    if claim.rstrip(" |").endswith("<!-- no claim -->"):
        return
    path, named = "", 0
    for program, file, test in NAME.findall(claim):
        path = file or path
        named += not file
        if program and not (ROOT / program).exists():
            yield f"there is no {program}"
        if test and test not in names_in(path):
            yield f"there is no test {path}::{test}"
    if not named:
        yield "no test is named"


@pytest.mark.parametrize("page", ["durable.md", "security.md"])
def test_claims(page: str) -> None:
    """Each has a test, which exists."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    found = [(claim[:60], problem) for claim in claims(text) for problem in problems(claim)]
    assert found == []


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("", "", None),
        (" <!-- docs/test_claims.py::test_claims -->", "", "no test is named"),
        (" <!-- ::test_claims ::test_problems -->", "", "no test is named"),
        ("::test_problems", "::test_nothing", "there is no test docs/test_claims.py::test_nothing"),
        (
            "docs/test_claims.py::",
            "docs/test_x.py::",
            "there is no test docs/test_x.py::test_claims",
        ),
        ("soak", "sock", "there is no benchmarks/sock.py"),
        (" <!-- no claim -->", "", "no test is named"),
    ],
)
def test_problems(before: str, after: str, problem: str | None) -> None:
    """A claim without a test, and a test that does not exist, are found."""
    found = [p for claim in claims(EXAMPLE.replace(before, after)) for p in problems(claim)]
    assert found == ([] if problem is None else [problem])
