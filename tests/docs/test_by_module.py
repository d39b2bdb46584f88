"""The page of tests by module."""

from pathlib import Path

from coverage import CoverageData

from tests.support.by_module import HEAD, page
from tests.support.paths import ROOT


def test_files_of_a_module(tmp_path: Path) -> None:
    """Files that run lines of a module that few others run come first; importing is no test."""
    data = CoverageData(str(tmp_path / "measured"))
    module = str(ROOT / "chatclient" / "module.py")
    ran = {
        "": {1, 2},
        "test_all.py": {3, 4, 5},
        "test_some.py": {3, 4},
        "test_this.py": {3, 4, 6, 7},
    }
    for context, lines in ran.items():
        data.set_context(context)
        data.add_lines({module: lines})

    row = "| `chatclient/module.py` | `test_this.py` `test_all.py` `test_some.py` |  |\n"
    assert page(data) == HEAD + row
