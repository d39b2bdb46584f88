"""Errors in exception groups and error chains, and tracebacks without local variables.

A task group wraps the error of a task in an `ExceptionGroup`. User code that uses one must have the
same effect as code without: an error that the library knows is handled by its type.
"""

import inspect
import traceback
from collections.abc import Collection, Iterator
from types import FrameType
from typing import NoReturn


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
