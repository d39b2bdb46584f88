"""Context variables of the library, restored after each blocking call.

Code that sets one also resets it, except if Ctrl-C arrives between the call and its `with` block.
Without `restore`, later requests of the thread would appear as part of the interrupted one.
"""

from contextvars import ContextVar, Token
from typing import Any, TypeVar

T = TypeVar("T")

_known: list[ContextVar[Any]] = []


def context_variable(name: str, default: T) -> ContextVar[T]:
    """Create a variable that `snapshot` covers; called at module level."""
    variable: ContextVar[T] = ContextVar(name, default=default)
    _known.append(variable)
    return variable


def snapshot() -> list[tuple[ContextVar[Any], Token[Any]]]:
    """Return the present values of the variables, for `restore`."""
    return [(variable, variable.set(variable.get())) for variable in _known]


def restore(values: list[tuple[ContextVar[Any], Token[Any]]]) -> None:
    """Reset all variables to the *values* of a `snapshot`."""
    for variable, token in values:
        variable.reset(token)
