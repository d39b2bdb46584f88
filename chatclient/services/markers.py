"""Decorators and annotations for the methods of a service."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from chatclient.errors import UsageError
from chatclient.extend import check_type
from chatclient.tools.function.parameters import ToolMemoryId

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__chatclient_service__"


class MemoryId(ToolMemoryId):
    """Marks the parameter that is the conversation id: `Annotated[str, MemoryId]`.

    Numbers are allowed, too. For a tool it is equivalent to `ToolMemoryId`: the library supplies
    the value, and the model does not see the parameter.
    """


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of the decorators of a method or an interface; None without a decorator."""

    system: str | Path | None = None
    user: str | Path | None = None


def system_message(text: str | Path) -> Callable[[F], F]:
    """Set the system text of a method, or of all methods of an interface.

    Args:
        text: A template with the method's parameters as placeholders, or the path of a UTF-8 file
            with it, read by `ai_service`. The text of a method replaces that of the interface, and
            that of the interface replaces the client's.

    Raises:
        WrongTypeError: *text* is neither; for example, the parentheses are missing.
    """
    check_type("a system message", text, (str, Path), 'write @system_message("...")')

    def mark(target: F) -> F:
        setattr(target, _MARK, Texts(text, texts_of(target).user))
        return target

    return mark


def user_message(text: str | Path) -> Callable[[F], F]:
    """Set the user text of a method.

    Args:
        text: A template with the method's parameters as placeholders, or the path of a UTF-8 file
            with it, read by `ai_service`.

    Raises:
        WrongTypeError: *text* is neither; for example, the parentheses are missing.
        UsageError: A class is decorated.
    """
    check_type("a user message", text, (str, Path), 'write @user_message("...")')

    def mark(target: F) -> F:
        if isinstance(target, type):
            msg = f"@user_message is for methods, not for the class {target.__name__}"
            raise UsageError(msg)
        setattr(target, _MARK, Texts(texts_of(target).system, text))
        return target

    return mark


def texts_of(target: Any) -> Texts:
    """Return the texts of the decorators of *target*, without those of base classes."""
    texts = vars(target).get(_MARK) if hasattr(target, "__dict__") else None
    return texts if isinstance(texts, Texts) else Texts()
