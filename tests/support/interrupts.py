"""Interrupts at a given line."""

import linecache
import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

import pytest


def interrupt_at(line: int, function: Callable[[], object], *modules: ModuleType) -> bool:
    """Return whether *function* was interrupted at its *line*th executed line in *modules*.

    The test is skipped with newer Pythons, where it may hang.
    """
    if sys.version_info >= (3, 12):
        pytest.skip("tracing raises in comprehensions past the `with` around them; signals do not")
    files = {module.__file__ for module in modules}
    left = line

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in files:
            return None
        # Python handles no signal between leaving a `with` block and `__exit__`.
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and not text.lstrip().startswith("with"):
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False
