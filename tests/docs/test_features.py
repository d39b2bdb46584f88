"""The report of features: rows from a data file, tests from their markers."""

from pathlib import Path

import pytest

from tests.support import features

ROWS = """
intro = "Each row names a feature."

[[section]]
title = "Clients"
columns = ["Spring AI", "here"]

[[section.row]]
id = "client-create"
reference = "`create(model)`"
here = "`create(model | name)`"
differs = "takes a name, too"

[[section.row]]
id = "client-listener"
reference = "`McpClientListener`"
differs = "none: observers see the calls"
"""
TEST = """
import pytest

@pytest.mark.feature("client-create")
@pytest.mark.parametrize("name", ["a", "b"])
async def test_a_model_is_found_by_name(name):
    pass
"""


def page(folder: Path, rows: str = ROWS, test: str = TEST) -> str:
    """Return the page of *rows* and of one file with *test*."""
    data = folder / "features.toml"
    data.write_text(rows, encoding="utf-8")
    tests = folder / "tests" / "modes"
    tests.mkdir(parents=True)
    (tests / "test_client.py").write_text(test, encoding="utf-8")
    return features.report(data, tests.parent)


def test_row_lists_its_tests(tmp_path: Path) -> None:
    """Marked tests are found in the source, with their file."""
    *_, proved, listener = page(tmp_path).splitlines()
    test = "modes/test_client.py::test_a_model_is_found_by_name"

    assert proved == (
        rf"| `create(model)` | `create(model \| name)` | takes a name, too | `{test}` |"
    )
    assert listener == "| `McpClientListener` |  | none: observers see the calls |  |"


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ('"client-create")', '"client-crate")', "row 'client-create' has no test"),
        (
            '"client-create")',
            '"client-create", "client-crate")',
            "modes/test_client.py::test_a_model_is_found_by_name: no row has the id 'client-crate'",
        ),
        ('"client-create")', '"client-create", "client-listener")', "'client-listener' has a test"),
        ('id = "client-listener"', 'id = "client-create"', "two rows have the id 'client-create'"),
    ],
)
def test_rows_and_markers_must_agree(tmp_path: Path, before: str, after: str, problem: str) -> None:
    """Otherwise the page is not generated, and the error names the problem."""
    with pytest.raises(features.FeatureError, match=problem):
        page(tmp_path, ROWS.replace(before, after), TEST.replace(before, after))


def test_every_row_has_a_test() -> None:
    """Each row has a test or a reason, and each marker has a row."""
    assert features.report().count("\n| ") > 900
