"""Errors of task groups.

A task group wraps the error of a task in an `ExceptionGroup`. User code that uses one must have the
same effect as code without: an error that the library knows is handled by its type.
"""

from collections.abc import Iterator
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
