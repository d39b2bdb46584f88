"""Warns about builders and requests that a statement makes and drops.

They are immutable, so a statement such as `request.system("...")` has no effect: its result is a
new request, which is dropped. A builder or request that is stored is not reported, even if it is
never used, because it may be one of many that an application prepares.
"""

import sys
import warnings
from opcode import opmap
from types import FrameType
from typing import Any

_POP_TOP, _CACHE = opmap["POP_TOP"], opmap["CACHE"]
# The instructions that make the result of a statement. After others, such as those that leave a
# `with` block, the dropped value is an exception, whose traceback may refer to a request.
_MAKES_RESULT = frozenset(
    code for name, code in opmap.items() if name.startswith(("CALL", "BUILD_"))
)


def warn_if_dropped(
    hint: str,
    *,
    frame_at: Any = sys._getframe,  # noqa: SLF001 - modules may be gone when Python ends
    warn: Any = warnings.warn,
) -> None:
    """Emit a `RuntimeWarning` if the value that is being deleted was the result of a statement.

    Called from `__del__` of a value that was not used.

    Args:
        hint: What was forgotten.
        frame_at: Returns a frame of the stack.
        warn: Emits the warning.
    """
    frame: FrameType | None = frame_at(1).f_back
    if frame is not None and frame.f_lasti >= 0 and _ends_statement(frame):
        warn(hint, RuntimeWarning, 3)


def _ends_statement(frame: FrameType) -> bool:
    """Return whether *frame* drops the result of a statement, and not a variable or an argument."""
    code, at = frame.f_code.co_code, frame.f_lasti
    if code[at] != _POP_TOP:
        return False
    at -= 2
    while at > 0 and code[at] == _CACHE:
        at -= 2
    return code[at] in _MAKES_RESULT
