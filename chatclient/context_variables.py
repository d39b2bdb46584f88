"""Context variables of the library's own, which a blocking call leaves as it has found them.

What sets one puts it back, unless Ctrl-C comes just where a `with` block begins or ends. A later
request of the same thread would then be told as a part of the dead one, say.
"""

from contextvars import ContextVar, Token
from typing import Any, TypeVar

T = TypeVar("T")

_known: list[ContextVar[Any]] = []


def context_variable(name: str, default: T) -> ContextVar[T]:
    """Return a new variable; call this once for each, where a module defines it."""
    variable: ContextVar[T] = ContextVar(name, default=default)
    _known.append(variable)
    return variable


def hold_variables() -> list[tuple[ContextVar[Any], Token[Any]]]:
    """Return what `release_variables` goes back to."""
    return [(variable, variable.set(variable.get())) for variable in _known]


def release_variables(held: list[tuple[ContextVar[Any], Token[Any]]]) -> None:
    """Set all variables to what they were when they were *held*."""
    for variable, token in held:
        variable.reset(token)
