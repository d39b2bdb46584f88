"""One method of a service: what its parameters are for, and how it becomes a request."""

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic_core import to_json

from chatclient.client import ChatClient, ChatClientRequestSpec
from chatclient.errors import TemplateError, UsageError
from chatclient.messages import Media, UserMessage
from chatclient.options import ChatOptions
from chatclient.services.markers import MemoryId, Texts
from chatclient.services.results import Answer, answer_for
from chatclient.spec import RequestSpec
from chatclient.template import TemplateRenderer
from chatclient.tool import ToolContext
from chatclient.tools.parameters import unannotated

Role = Literal["variable", "user", "memory_id", "media", "options", "tool_context"]
"""What a parameter is for."""

_ROLE_OF_MARK: Mapping[Any, Role] = {
    MemoryId: "memory_id",
    UserMessage: "user",
    ToolContext: "tool_context",
}


@dataclass(frozen=True, slots=True)
class Method:
    """A method as it is carried out.

    Attributes:
        signature: What it is called with, `self` included.
        roles: What each parameter is for.
        system: The template of the system text, or None for the client's own.
        user: The template of the user text, or None.
        fills_system: Whether the variables go to the client's own system text.
        answer: Makes of the request what the method returns.
    """

    signature: inspect.Signature
    roles: Mapping[str, Role]
    system: str | None
    user: str | None
    fills_system: bool
    answer: Answer

    def __call__(self, client: ChatClient, /, *args: Any, **kwargs: Any) -> Any:
        """Carry it out; the arguments begin with `self`.

        Raises:
            TypeError: The arguments do not fit the signature.
        """
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        params = {name: given[name] for name, role in self.roles.items() if role == "variable"}
        request = client.prompt()
        if self.system is not None or self.fills_system:
            request = request.system(self.system, params=params)
        if self.user is not None:
            request = request.user(self.user, params=params)
        for name, role in self.roles.items():
            if given[name] is not None:
                request = _given(client, request, role, given[name])
        return self.answer(request)


def _given(
    client: ChatClient, request: ChatClientRequestSpec, role: Role, value: Any
) -> ChatClientRequestSpec:
    """Return *request* with the argument of a parameter."""
    match role:
        case "variable":
            return request
        case "user" if isinstance(value, UserMessage):
            return ChatClientRequestSpec(client, _with_message(request.spec, value))
        case "user":
            return request.user(value if isinstance(value, str) else to_json(value).decode())
        case "memory_id":
            return request.conversation(str(value))
        case "media":
            return request.user(media=value)
        case "options":
            return request.options(value)
        case "tool_context":
            return request.tool_context(value)
        case _:
            typing.assert_never(role)


def _with_message(spec: RequestSpec, message: UserMessage) -> RequestSpec:
    """Return *spec* with *message* as what the user says, its parts in their order."""
    if UserMessage(message.text, message.media).parts == message.parts:
        return spec.with_user(message.text or None, None, message.media, message.metadata)
    unsaid = replace(spec.user, text="")  # the client's own text gives way, as to any other
    return replace(spec, user=unsaid, messages=(*spec.messages, message))


def method_of(function: Callable[..., Any], texts: Texts, defaults: RequestSpec) -> Method:
    """Return how *function* is carried out.

    Args:
        function: A method of an interface, without a body.
        texts: Its templates.
        defaults: What the client has already.

    Raises:
        UsageError: It cannot be carried out; the message goes on after the method's name.
    """
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        msg = f"has an annotation that cannot be resolved ({error})"
        raise UsageError(msg) from error
    if "return" not in hints:
        msg = "does not say what it returns"
        raise UsageError(msg)
    signature = inspect.signature(function)
    roles = dict(_roles(signature, hints))
    fills_system = texts.system is None and bool(defaults.system.params)
    system = _text(texts.system) if texts.system is not None else None
    user = _text(texts.user) if texts.user is not None else None
    templates = _Templates(defaults.renderer, [n for n, r in roles.items() if r == "variable"])
    if system is not None:
        templates.check(system, defaults.system.params)
    elif fills_system:
        templates.check(defaults.system.text, defaults.system.params)
    if user is not None:
        templates.check(user, defaults.user.params)
    _settle_user(roles, user, templates, defaults)
    answer = answer_for(hints["return"], is_async=inspect.iscoroutinefunction(function))
    return Method(signature, roles, system, user, fills_system, answer)


def _text(source: str | Path) -> str:
    try:
        text = source if isinstance(source, str) else source.read_text(encoding="utf-8")
    except OSError as error:
        msg = f"wants a text from a file that cannot be read ({error})"
        raise UsageError(msg) from error
    if not text.strip():
        msg = "has a blank text"
        raise UsageError(msg)
    return text


# --- what parameters are for ----------------------------------------------------------------


def _roles(signature: inspect.Signature, hints: Mapping[str, Any]) -> Iterator[tuple[str, Role]]:
    seen: set[Role] = set()
    for name, parameter in list(signature.parameters.items())[1:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            msg = f"takes {parameter}; every parameter needs a name"
            raise UsageError(msg)
        role = _role(hints.get(name))
        if role in seen and role not in ("variable", "media"):
            msg = f"has several parameters for the {role.replace('_', ' ')}; one will do"
            raise UsageError(msg)
        seen.add(role)
        yield name, role


def _role(annotation: Any) -> Role:
    plain, marks = unannotated(annotation)
    for mark in marks:
        kind = mark if isinstance(mark, type) else type(mark)
        if kind in _ROLE_OF_MARK:
            return _ROLE_OF_MARK[kind]
    is_union = get_origin(plain) in (Union, types.UnionType)
    kinds = [k for k in (get_args(plain) if is_union else (plain,)) if k is not type(None)]
    if is_union and len(kinds) == 1:  # the mark may be inside: `Annotated[...] | None`
        return _role(kinds[0])
    if MemoryId in kinds:
        msg = "has a parameter of type MemoryId, which marks a type: write Annotated[str, MemoryId]"
        raise UsageError(msg)
    if UserMessage in kinds:
        return "user"
    if any(isinstance(kind, type) and issubclass(kind, ChatOptions) for kind in kinds):
        return "options"
    if ToolContext in kinds:
        return "tool_context"
    is_media = [kind is Media or Media in get_args(kind) for kind in kinds]
    return "media" if kinds and all(is_media) else "variable"


def _settle_user(
    roles: dict[str, Role], user: str | None, templates: "_Templates", defaults: RequestSpec
) -> None:
    """Find out what the user says, and make sure that every parameter counts for something."""
    unused = templates.unused
    if "user" in roles.values():
        if user is not None:
            msg = "has a @user_message and a parameter for the user message; one will do"
            raise UsageError(msg)
    elif user is None and len(unused) == 1:
        roles[unused.pop()] = "user"
    elif user is None and not unused and not _says_something(roles, defaults):
        msg = "says nothing to the model; give it a @user_message, or a parameter for one"
        raise UsageError(msg)
    if unused:
        msg = (
            f"does nothing with {', '.join(unused)}; use it in a @user_message or @system_message,"
            " or mark the one that is the user's text: Annotated[str, UserMessage]"
        )
        raise UsageError(msg)


def _says_something(roles: Mapping[str, Role], defaults: RequestSpec) -> bool:
    return "media" in roles.values() or bool(defaults.user.text or defaults.messages)


# --- templates ------------------------------------------------------------------------------


class _Templates:
    """Checks templates before there are values, and notes which variables they use."""

    def __init__(self, renderer: TemplateRenderer, variables: Iterable[str]) -> None:
        self._renderer = renderer
        self._variables = tuple(variables)
        self.unused = list(self._variables)

    def check(self, template: str, known: Mapping[str, Any]) -> None:
        """Make sure that *template* finds all it needs.

        Raises:
            UsageError: It does not.
        """
        values = _Values([*known, *self._variables])
        try:
            self._renderer(template, values)
        except (TemplateError, KeyError) as error:
            has = ", ".join(self._variables) or "no parameter for them"
            missing = error.missing if isinstance(error, TemplateError) else error.args
            msg = f"has a template that needs {', '.join(missing) or error}; it has {has}"
            raise UsageError(msg) from error
        except Exception:  # noqa: BLE001 - a renderer of the application's own wants real values
            self.unused = []
            return
        self.unused = [name for name in self.unused if name not in values.used]


class _Values(Mapping[str, Any]):
    """Stands for the values that a template will get, and notes which it asks for."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = dict.fromkeys(names)
        self.used: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        self.used.add(name)
        return _ANYTHING

    def __iter__(self) -> Iterator[str]:
        self.used.update(self._names)  # whoever takes all of them cannot be watched
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class _Anything:
    """Has every attribute."""

    def __getattr__(self, _name: str) -> "_Anything":
        return self


_ANYTHING = _Anything()
