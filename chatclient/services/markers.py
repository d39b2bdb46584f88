"""What the methods of a service say about themselves."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from chatclient.checks import check_kind
from chatclient.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__chatclient_service__"


class MemoryId:
    """Marks the parameter that says which conversation a call continues.

    `Annotated[str, MemoryId]`; numbers will do as well.
    """


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts that a method, or a whole interface, was marked with; None without."""

    system: str | Path | None = None
    user: str | Path | None = None


def system_message(text: str | Path) -> Callable[[F], F]:
    """Tell the model about its task, in one method or in all of an interface.

    Args:
        text: A template whose placeholders are the method's parameters, or the file it is in
            (UTF-8, read when the service is made). The method's own goes before the interface's,
            and that before the client's.

    Raises:
        WrongTypeError: *text* is neither; so it is where the parentheses are left out.
    """
    check_kind("a system message", text, (str, Path), 'write @system_message("...")')

    def mark(target: F) -> F:
        setattr(target, _MARK, Texts(text, texts_of(target).user))
        return target

    return mark


def user_message(text: str | Path) -> Callable[[F], F]:
    """Say what a method says to the model.

    Args:
        text: A template whose placeholders are the method's parameters, or the file it is in
            (UTF-8, read when the service is made).

    Raises:
        WrongTypeError: *text* is neither; so it is where the parentheses are left out.
        UsageError: It is to be said by a whole interface.
    """
    check_kind("a user message", text, (str, Path), 'write @user_message("...")')

    def mark(target: F) -> F:
        if isinstance(target, type):
            msg = f"@user_message is for methods, not for the whole of {target.__name__}"
            raise UsageError(msg)
        setattr(target, _MARK, Texts(texts_of(target).system, text))
        return target

    return mark


def texts_of(target: Any) -> Texts:
    """Return what *target* itself was marked with."""
    own = vars(target).get(_MARK) if hasattr(target, "__dict__") else None
    return own if isinstance(own, Texts) else Texts()
