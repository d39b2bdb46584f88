"""Errors in exception groups and error chains, and tracebacks: without local variables, or frames.

A task group wraps the error of a task in an `ExceptionGroup`. User code that uses one must have the
same effect as code without: an error that the library knows is handled by its type.

In pytest and in notebooks, tracebacks leave out the frames of this library. The environment
variable `CHATCLIENT_FULL_TRACEBACK`, if not empty, switches this off.
"""

import inspect
import os
import sys
import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, NoReturn


def leaf_errors(error: Exception) -> Iterator[Exception]:
    """Yield the errors in a group and the groups in it; *error* itself if it is no group."""
    if isinstance(error, ExceptionGroup):
        for each in error.exceptions:
            yield from leaf_errors(each)
    else:
        yield error


def single_error(error: Exception) -> Exception:
    """Return the only error in a group, at any depth; otherwise *error* itself."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def raise_single(group: ExceptionGroup[Exception]) -> NoReturn:
    """Raise the only error in *group*, or *group* itself if it has several."""
    error = single_error(group)
    raise error from error.__cause__


class WithoutLocals:
    """A context whose errors show no local variables, such as headers in frames of httpx.

    An error keeps its frames, without their variables. The errors that led to it keep none:
    libraries share some between tasks, and frames of other tasks cannot be cleared. Errors that
    callers are handling stay unchanged.
    """

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Clear the finished frames of *error*."""
        if error is None:
            return
        traceback.clear_frames(error.__traceback__)
        frames = traceback.walk_stack(inspect.currentframe())
        _, _, *callers = (frame for frame, _ in frames)
        for linked in chain_of(error, callers):
            if linked is not error:
                linked.__traceback__ = None


def chain_of(error: BaseException, callers: Collection[FrameType] = ()) -> list[BaseException]:
    """Return *error* with its causes, contexts and members, up to those handled in *callers*."""
    chain: list[BaseException] = []
    pending: list[BaseException | None] = [error]
    while pending:
        linked = pending.pop()
        if (
            linked is None
            or linked in chain
            or (linked.__traceback__ and linked.__traceback__.tb_frame) in callers
        ):
            continue
        chain.append(linked)
        members = linked.exceptions if isinstance(linked, BaseExceptionGroup) else ()
        pending += [linked.__cause__, linked.__context__, *members]
    return chain


SWITCH = "CHATCLIENT_FULL_TRACEBACK"

_PACKAGE = __name__.partition(".")[0]
_marked = 0  # the number of modules of the process when those of this package were marked


def hide_from_pytest() -> None:
    """Have pytest ask `is_hidden` about the frames of all modules of this package.

    Does nothing in a process without pytest.
    """
    global _marked  # noqa: PLW0603 - called for each error, while modules are imported rarely
    if "_pytest" not in sys.modules or _marked == len(sys.modules):
        return
    _marked = len(sys.modules)
    for name, module in sys.modules.copy().items():
        # A value of None prevents the import of a module.
        if name.partition(".")[0] == _PACKAGE and getattr(module, "__dict__", None) is not None:
            module.__dict__.setdefault("__tracebackhide__", is_hidden)


def is_hidden(excinfo: Any) -> bool:
    """Return whether pytest should leave out the frames of this package.

    Args:
        excinfo: The `pytest.ExceptionInfo` whose traceback is shown, or None.
    """
    return excinfo is not None and not os.environ.get(SWITCH) and _is_ours(excinfo.value)


def in_ipython(error: BaseException) -> list[str]:
    """Return the lines of the traceback of *error* and of its causes, as IPython formats them."""
    module: Any = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    if shell is None:
        return traceback.format_exception(error)
    with _without_library_frames(error):
        lines: list[str] = shell.InteractiveTB.structured_traceback(
            type(error), error, error.__traceback__
        )
        return lines


@contextmanager
def _without_library_frames(error: BaseException) -> Iterator[None]:
    """Remove the frames of this package from the tracebacks of *error* and its causes."""
    if os.environ.get(SWITCH):
        yield
        return
    chain = [each for each in _chain(error) if _is_ours(each)]
    before = [each.__traceback__ for each in chain]
    try:
        for each in chain:
            each.__traceback__ = _filtered(each.__traceback__)
        yield
    finally:
        for each, complete in zip(chain, before, strict=True):
            each.__traceback__ = complete


def _is_ours(error: BaseException) -> bool:
    """Return whether *error* was raised by this package, or caught by it, as a cause."""
    if type(error).__module__.partition(".")[0] == _PACKAGE or error.__traceback__ is None:
        return True
    return _is_library_frame(error.__traceback__.tb_frame)


def _is_library_frame(frame: FrameType) -> bool:
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0] == _PACKAGE


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield *error* and the errors that are shown before it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _filtered(trace: TracebackType | None) -> TracebackType | None:
    """Return *trace* without the frames of this package; the last frame if no other is left."""
    entries: list[TracebackType] = []
    while trace is not None:
        entries.append(trace)
        trace = trace.tb_next
    kept = [each for each in entries if not _is_library_frame(each.tb_frame)] or entries[-1:]
    for each in reversed(kept):
        trace = TracebackType(trace, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return trace
