"""Warns about builders and requests that a statement makes and drops.

They are immutable, so a statement such as `request.system("...")` has no effect: its result is a
new request, and nobody has it. A builder or request that is stored is not reported, even if it is
never used, because it may be one of many that an application prepares.
"""

import sys
import warnings
from opcode import opmap
from types import FrameType
from typing import Any

_POP_TOP = opmap["POP_TOP"]


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
    if frame is None or frame.f_lasti < 0:
        return
    # The instruction that drops the result of a statement; others drop a variable or an argument.
    if frame.f_code.co_code[frame.f_lasti] == _POP_TOP:
        warn(hint, RuntimeWarning, 3)
