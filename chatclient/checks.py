"""What is checked of arguments when something is made of them: a slip would show late, or never."""

from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from typing import Any, get_args

from chatclient.annotations import declared_signature
from chatclient.errors import UsageError, WrongTypeError


def check_word(
    what: str, given: object, *known: object, error: type[UsageError] = UsageError
) -> None:
    """Make sure that a setting has one of the values that it knows.

    Args:
        what: The setting.
        given: Its value.
        *known: What it may be: values, and `Literal`s for all that they have in them.
        error: What kind of error is raised.

    Raises:
        UsageError: It is something else.
    """
    words = [word for each in known for word in get_args(each) or (each,)]
    # 1 is equal to True, and "READ" to nothing.
    if not any(given is word or (given == word and isinstance(given, str)) for word in words):
        msg = f"{what} must be {_listed(words)}, not {given!r}"
        raise error(msg)


def check_kind(
    what: str, given: object, kind: type | tuple[type, ...], hint: str | None = None
) -> None:
    """Make sure that an argument is of the right kind.

    Args:
        what: The argument.
        given: What it is.
        kind: What it may be.
        hint: What to do instead, where that is not plain.

    Raises:
        WrongTypeError: It is something else, such as a class where an object of it is meant.
    """
    if not isinstance(given, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if isinstance(given, type) and issubclass(given, kinds):
            hint = _make_one(given)
        raise _wrong(what, " or ".join(_a(each.__name__) for each in kinds), given, hint)


def check_model_name(given: object) -> None:
    """Make sure that *given* can name a model.

    Raises:
        UsageError: It is no text, or a blank one, as an environment variable may be.
    """
    check_kind("the name of a model", given, str)
    if not str(given).strip():
        msg = "the name of a model must not be blank"
        raise UsageError(msg)


def check_method(what: str, given: object, method: str, hint: str | None = None) -> None:
    """Make sure that an argument is an object with a method; see `check_kind`.

    Raises:
        WrongTypeError: It has none, or is a class.
    """
    able = callable(getattr(given, method, None))
    if isinstance(given, type) or not able:
        hint = _make_one(given) if isinstance(given, type) and able else hint
        raise _wrong(what, f"an object with a method {method}()", given, hint)


def check_callable(
    what: str, given: object, hint: str | None = None, *, takes: tuple[str, ...] = ()
) -> None:
    """Make sure that an argument can be called, and is not a class; see `check_kind`.

    Args:
        what: The argument.
        given: What it is.
        hint: What to do instead, where that is not plain.
        takes: What it is called with, by position; nothing is checked if that is not said.

    Raises:
        WrongTypeError: It cannot, or not with that, or is a class.
    """
    if isinstance(given, type) or not callable(given):
        hint = _make_one(given) if isinstance(given, type) else hint
        raise _wrong(what, "a function or another callable object", given, hint)
    if takes and (error := misfit(given, len(takes))):
        msg = f"{what} is called with ({', '.join(takes)}), which {given!r} does not take: {error}"
        raise WrongTypeError(msg) from error


def check_number(what: str, given: object, *, least: float = 0) -> None:
    """Make sure that an argument is a number, and not too small.

    Raises:
        WrongTypeError: It is something else.
        UsageError: It is less than *least*.
    """
    if not isinstance(given, int | float) or isinstance(given, bool):
        raise _wrong(what, "a number", given, None)
    if not given >= least:
        msg = f"{what} must be at least {least}, not {given!r}"
        raise UsageError(msg)


def seconds(what: str, given: object) -> float:
    """Return a stretch of time, given in seconds or as a `timedelta`, in seconds.

    Raises:
        WrongTypeError: It is something else.
        UsageError: It is not greater than 0.
    """
    if isinstance(given, timedelta):
        given = given.total_seconds()
    if not isinstance(given, int | float) or isinstance(given, bool):
        raise _wrong(what, "a number of seconds or a timedelta", given, None)
    if not given > 0:
        msg = f"{what} must be a positive number of seconds, not {given!r}"
        raise UsageError(msg)
    return given


def lasting(what: str, given: float | timedelta | None) -> timedelta | None:
    """Return how long something lasts, given in seconds or as a `timedelta`; None is for ever.

    Raises:
        UsageError: It is neither, not greater than 0, or longer than a `timedelta` can be.
    """
    if given is None:
        return None
    length = seconds(what, given)
    try:
        return given if isinstance(given, timedelta) else timedelta(seconds=length)
    except OverflowError:
        msg = f"{what} must be at most {timedelta.max.days} days, or None for ever, not {given!r}"
        raise UsageError(msg) from None


def names(given: str | Iterable[str]) -> frozenset[str]:
    """Return the names in *given*; a text is one of them, and not its letters.

    Raises:
        WrongTypeError: It is not a text, and holds something else than texts.
    """
    if type(given) is frozenset:  # as a rule this has been done already
        return given
    if isinstance(given, str):
        return frozenset((given,))
    check_kind("several names", given, Iterable, "put them into a list")
    several = frozenset(given)
    for each in several:
        check_kind("a name", each, str)
    return several


def error_kinds(
    what: str, given: type[Exception] | Collection[type[Exception]]
) -> tuple[type[Exception], ...]:
    """Return the types of errors in *given*: one, or several.

    Raises:
        WrongTypeError: It is something else.
    """
    several: Any = given
    if isinstance(given, str | type) or not isinstance(given, Collection):
        several = (given,)
    for each in several:
        if not isinstance(each, type) or not issubclass(each, Exception):
            raise _wrong(what, "a type of errors, or several of them", each, None)
    return tuple(several)


_ONE_FOR_ALL = {
    "tool_callbacks": "tools",
    "tool_names": "tools",
    "default_tool_callbacks": "default_tools",
    "default_tool_names": "default_tools",
}
"""What has a method for each kind of tools elsewhere, and one for all of them here."""


def missing(given: object, name: str, hint: str) -> AttributeError:
    """Return the error that *given* has no attribute *name*, with what to write instead."""
    if hasattr(type(given), _ONE_FOR_ALL.get(name, "")):
        hint = f"; tools of every kind, and names of tools, go into .{_ONE_FOR_ALL[name]}(...)"
    msg = f"{_a(type(given).__name__)} has no {name!r}{hint}"
    return AttributeError(msg, name=name, obj=given)


def misfit(function: Callable[..., object], count: int) -> TypeError | None:
    """Return why *function* cannot be called with *count* arguments by position, None if it can.

    What is written in C may not say what it takes, and is not refused.
    """
    try:
        declared_signature(function).bind(*[None] * count)
    except TypeError as error:
        return error
    except ValueError:
        pass
    return None


def wants_argument(function: Callable[..., object]) -> bool:
    """Return whether *function*, which may take an argument or not, is to be called with it.

    A parameter with a value of its own keeps it, as in `lambda name=name: ...`.
    """
    for parameter in declared_signature(function).parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            return parameter.default is parameter.empty or parameter.default is None
        return parameter.kind is parameter.VAR_POSITIONAL
    return False


def wants_both(function: Callable[..., object]) -> bool:
    """Return whether *function*, which may take one argument or two, takes two."""
    parameters = declared_signature(function).parameters.values()
    return len([each for each in parameters if each.default is each.empty]) > 1


def _wrong(what: str, right: str, given: object, hint: str | None) -> WrongTypeError:
    shown = f"the class {given.__name__}" if isinstance(given, type) else repr(given)
    return WrongTypeError(f"{what} must be {right}, not {shown}{f'; {hint}' if hint else ''}")


def _make_one(kind: type) -> str:
    return f"make one: {kind.__name__}(...)"


def _a(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOaeio' else 'a'} {name}"


def _listed(words: Iterable[object]) -> str:
    *others, last = map(repr, words)
    return f"{', '.join(others)} or {last}" if others else last
