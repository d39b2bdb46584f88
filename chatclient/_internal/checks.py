"""Argument checks of public functions and constructors, with error messages that name the fix."""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, NoReturn, get_args

from chatclient._internal.annotations import declared_signature
from chatclient._internal.roles import role_of
from chatclient.errors import UsageError, WrongTypeError


def check_choice(
    what: str, given: object, *known: object, error: type[UsageError] = UsageError
) -> None:
    """Check that a setting has one of its known values.

    Args:
        what: The name of the setting.
        given: Its value.
        *known: The allowed values; a `Literal` means all values in it.
        error: The type of the error.

    Raises:
        UsageError: The value is not known.
    """
    choices = [choice for each in known for choice in get_args(each) or (each,)]
    # By identity, because 1 == True; strings by value.
    if not any(given is each or (given == each and isinstance(given, str)) for each in choices):
        msg = f"{what} must be {_listed(choices)}, not {given!r}{_hints(given, None)}"
        raise error(msg)


def check_type(
    what: str, given: object, kind: type | tuple[type, ...], hint: str | None = None
) -> None:
    """Check the type of an argument.

    Args:
        what: The name of the argument.
        given: Its value.
        kind: The allowed type or types.
        hint: What to write instead, appended to the message.

    Raises:
        WrongTypeError: The value has another type, or is a class instead of an instance of it.
    """
    if not isinstance(given, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if isinstance(given, type) and issubclass(given, kinds):
            hint = _instance_hint(given)
        expected = " or ".join(_with_article(each.__name__) for each in kinds)
        raise _wrong_type(what, expected, given, hint)


def check_model_name(given: object) -> None:
    """Check that *given* is a text and not blank, as an unset environment variable may be.

    Raises:
        UsageError: It is not.
    """
    check_type("the name of a model", given, str)
    if not str(given).strip():
        msg = "the name of a model must not be blank"
        raise UsageError(msg)


def check_method(what: str, given: object, method: str, hint: str | None = None) -> None:
    """Check that an argument is an object with *method*; see `check_type`.

    Raises:
        WrongTypeError: It has no such method, or is a class.
    """
    has_method = callable(getattr(given, method, None))
    if isinstance(given, type) or not has_method:
        hint = _instance_hint(given) if isinstance(given, type) and has_method else hint
        raise _wrong_type(what, f"an object with a method {method}()", given, hint)


def check_callable(
    what: str, given: object, hint: str | None = None, *, takes: tuple[str, ...] = ()
) -> None:
    """Check that an argument is callable and not a class; see `check_type`.

    Args:
        what: The name of the argument.
        given: Its value.
        hint: What to write instead, appended to the message.
        takes: The names of the positional arguments it is called with; if empty, its signature is
            not checked.

    Raises:
        WrongTypeError: It is not callable, does not accept these arguments, is called with other
            ones in another role, or is a class.
    """
    if isinstance(given, type) or not callable(given):
        hint = _instance_hint(given) if isinstance(given, type) else hint
        raise _wrong_type(what, "a function or another callable object", given, hint)
    if not takes:
        return
    called, role = f"called with ({', '.join(takes)})", role_of(given)
    error = signature_error(given, len(takes))
    if role is not None and role.takes != takes and (error or role.takes):
        raise _wrong_type(what, called, given, hint)
    if error:
        msg = f"{what} is {called}, which {given!r} does not take: {error}"
        raise WrongTypeError(f"{msg}; {hint}" if hint else msg) from error


def check_number(what: str, given: object, *, least: float = 0) -> None:
    """Check that an argument is a number of at least *least*.

    Raises:
        WrongTypeError: It is not a number.
        UsageError: It is less than *least*.
    """
    if not isinstance(given, int | float) or isinstance(given, bool):
        raise _wrong_type(what, "a number", given, None)
    if not given >= least:
        msg = f"{what} must be at least {least}, not {given!r}"
        raise UsageError(msg)


def seconds(what: str, given: object) -> float:
    """Return a duration, given in seconds or as a `timedelta`, in seconds.

    Raises:
        WrongTypeError: It is neither.
        UsageError: It is not greater than 0.
    """
    if isinstance(given, timedelta):
        given = given.total_seconds()
    if not isinstance(given, int | float) or isinstance(given, bool):
        raise _wrong_type(what, "a number of seconds or a timedelta", given, None)
    if not given > 0:
        msg = f"{what} must be a positive number of seconds, not {given!r}"
        raise UsageError(msg)
    return given


def check_moment(what: str, given: object) -> None:
    """Check that *given* is None or a `datetime` with a time zone.

    Raises:
        WrongTypeError: It is not a `datetime`.
        UsageError: It has no time zone.
    """
    if given is None:
        return
    check_type(what, given, datetime)
    if getattr(given, "tzinfo", None) is None:
        msg = f"{what} needs a time zone; datetime.now(UTC) has one"
        raise UsageError(msg)


def duration(what: str, given: float | timedelta | None) -> timedelta | None:
    """Return a duration, given in seconds or as a `timedelta`; None means unlimited.

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
    """Return *given* as a set of names; a single text is one name.

    Raises:
        WrongTypeError: It is neither a text nor a collection of texts.
    """
    if type(given) is frozenset:  # checked before
        return given
    if isinstance(given, str):
        return frozenset((given,))
    check_type("several names", given, Iterable, "put them into a list")
    several = frozenset(given)
    for each in several:
        check_type("a name", each, str)
    return several


def checked_id(given: object, name: str = "a conversation id") -> str:
    """Return *given* after validation; *name* is for the error.

    Raises:
        UsageError: It is not a string, or blank.
    """
    if not isinstance(given, str) or not given.strip():
        msg = f"{name} must be a text that is not blank, not {given!r}"
        raise UsageError(msg)
    return given


def error_kinds(
    what: str, given: type[Exception] | Collection[type[Exception]]
) -> tuple[type[Exception], ...]:
    """Return *given*, one exception type or several, as a tuple.

    Raises:
        WrongTypeError: Something in it is not an exception type.
    """
    several: Any = given
    if isinstance(given, str | type) or not isinstance(given, Collection):
        several = (given,)
    for each in several:
        if not isinstance(each, type) or not issubclass(each, Exception):
            raise _wrong_type(what, "an exception type, or several of them", each, None)
    return tuple(several)


_REPLACEMENTS = {
    "tool_callbacks": "tools",
    "tool_names": "tools",
    "default_tool_callbacks": "default_tools",
    "default_tool_names": "default_tools",
}
"""Method names of Spring AI, and the methods that replace them."""


def missing_attribute(given: object, name: str, hint: str) -> AttributeError:
    """Return the error that *given* has no attribute *name*, with what to write instead."""
    if hasattr(type(given), _REPLACEMENTS.get(name, "")):
        hint = f"; tools of every kind, and names of tools, go into .{_REPLACEMENTS[name]}(...)"
    msg = f"{_with_article(type(given).__name__)} has no {name!r}{hint}"
    if not hint and not name.startswith("_"):
        from difflib import get_close_matches  # noqa: PLC0415 - imported for a message only

        public = [each for each in dir(type(given)) if not each.startswith("_")]
        if close := get_close_matches(name, public, n=1, cutoff=0.75):
            return AttributeError(f"{msg}; did you mean .{close[0]}?")
    return AttributeError(msg, name=name, obj=given)


def attribute_hints(hints: Mapping[str, str]) -> Callable[[object, str], Any]:
    """Return a `__getattr__` whose error says what to write instead of the names in *hints*."""

    def get_attribute(self: object, name: str) -> Any:
        raise missing_attribute(self, name, f"; {hints[name]}" if name in hints else "")

    return get_attribute


def only_asynchronous(self: object) -> NoReturn:
    """Be the `__iter__` of an asynchronous iterator, for an error that says what to write.

    Raises:
        WrongTypeError: Always.
    """
    kind = type(self).__name__
    msg = f"{kind} is asynchronous: write 'async for', or .stream() instead of .astream()"
    raise WrongTypeError(msg)


def signature_error(function: Callable[..., object], count: int) -> TypeError | None:
    """Return why *function* cannot be called with *count* positional arguments, or None.

    Functions written in C may have no signature; they are accepted.
    """
    try:
        declared_signature(function).bind(*[None] * count)
    except TypeError as error:
        return error
    except ValueError:
        pass
    return None


def wants_argument(function: Callable[..., object]) -> bool:
    """Return whether *function* takes the optional argument that the library can pass to it.

    A parameter with a default other than None is not counted, as in `lambda name=name: ...`.
    """
    for parameter in declared_signature(function).parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            return parameter.default is parameter.empty or parameter.default is None
        return parameter.kind is parameter.VAR_POSITIONAL
    return False


def wants_both(function: Callable[..., object]) -> bool:
    """Return whether *function* has more than one required parameter."""
    parameters = declared_signature(function).parameters.values()
    return len([each for each in parameters if each.default is each.empty]) > 1


def _wrong_type(what: str, expected: str, given: object, hint: str | None) -> WrongTypeError:
    shown = f"the class {given.__name__}" if isinstance(given, type) else repr(given)
    return WrongTypeError(f"{what} must be {expected}, not {shown}{_hints(given, hint)}")


def _hints(given: object, hint: str | None) -> str:
    """Return where *given* belongs, if that is known, and *hint*, for the end of a message."""
    role = role_of(given)
    place = str(role) if role and role.place not in (hint or "") else None
    return "".join(f"; {each}" for each in (place, hint) if each)


def _instance_hint(kind: type) -> str:
    return f"make one: {kind.__name__}(...)"


def _with_article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOaeio' else 'a'} {name}"


def _listed(values: Iterable[object]) -> str:
    *others, last = map(repr, values)
    return f"{', '.join(others)} or {last}" if others else last
