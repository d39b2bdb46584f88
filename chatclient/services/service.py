"""`ai_service`: implements an interface with a client."""

import dis
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    Protocol,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic_core import to_json

from chatclient._internal.annotations import (
    TypeArguments,
    UnknownTypeError,
    annotated_names,
    defining_class,
    resolve_variables,
    type_arguments,
)
from chatclient.chat.messages import Media, UserMessage
from chatclient.chat.options import ChatOptions
from chatclient.chat.template import TemplateRenderer
from chatclient.chat.tool import ToolContext
from chatclient.client.client import ChatClient
from chatclient.client.request import ChatClientRequestSpec
from chatclient.client.request_settings import RequestSettings
from chatclient.errors import TemplateError, UsageError
from chatclient.extend import check_type
from chatclient.memory.chat_memory import ChatMemory
from chatclient.services.results import Sender, Texts, sender_for, texts_of
from chatclient.tools.function.parameters import is_memory_id, members_of, unannotated

if TYPE_CHECKING:
    from typing_extensions import TypeForm

ParameterUse = Literal["variable", "user", "memory_id", "media", "options", "tool_context"]
"""The use of a parameter in the request."""

_USE_OF_MARK: Mapping[Any, ParameterUse] = {
    UserMessage: "user",
    ToolContext: "tool_context",
}


@dataclass(frozen=True, slots=True)
class Method:
    """The implementation of a method.

    Attributes:
        signature: The signature, including `self`.
        uses: The uses of the parameters, by name.
        system: The template of the system text, or None for the client's.
        user: The template of the user text, or None.
        fills_system: Whether the variables are used in the client's system text.
        send: Sends the request and returns the result of the method.
    """

    signature: inspect.Signature
    uses: Mapping[str, ParameterUse]
    system: str | None
    user: str | None
    fills_system: bool
    send: Sender

    def __call__(self, request: ChatClientRequestSpec, /, *args: Any, **kwargs: Any) -> Any:
        """Add the arguments, which begin with `self`, to *request*, and send it.

        Raises:
            TypeError: The arguments do not match the signature.
        """
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        params = {name: given[name] for name, use in self.uses.items() if use == "variable"}
        if self.system is not None or self.fills_system:
            request = request.system(self.system, params=params)
        if self.user is not None:
            request = request.user(self.user, params=params)
        for name, use in self.uses.items():
            if given[name] is not None:
                request = _with_argument(request, use, given[name])
        return self.send(request)


def _with_argument(
    request: ChatClientRequestSpec, use: ParameterUse, value: Any
) -> ChatClientRequestSpec:
    """Return *request* with the argument of a parameter with *use*."""
    match use:
        case "variable":
            return request
        case "user" if isinstance(value, UserMessage):
            return request.with_settings(_with_message(request.settings, value))
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
            typing.assert_never(use)


def _with_message(settings: RequestSettings, message: UserMessage) -> RequestSettings:
    """Return *settings* with *message* as the user message, with the order of its parts."""
    if UserMessage(message.text, message.media).parts == message.parts:
        return settings.with_user(message.text or None, None, message.media, message.metadata)
    without_text = replace(settings.user, text="")  # the message replaces the client's user text
    return replace(settings, user=without_text, messages=(*settings.messages, message))


def method_of(
    function: Callable[..., Any], owner: type[Any], texts: Texts, defaults: RequestSettings
) -> Method:
    """Return the implementation of *function*.

    Args:
        function: A method of an interface, without a body.
        owner: The interface, or one that inherits the method.
        texts: The templates of the method.
        defaults: The default settings of the client.

    Raises:
        UsageError: It cannot be implemented; the message is the end of a sentence after its name.
    """
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        msg = f"has an annotation that cannot be resolved ({error})"
        raise UsageError(msg) from error
    if "return" not in hints:
        msg = "has no return annotation"
        raise UsageError(msg)
    given = type_arguments(owner, defining_class(owner, function))
    hints = {name: _with_types(hint, given) for name, hint in hints.items()}
    signature = inspect.signature(function)
    uses = dict(_uses(signature, hints))
    fills_system = texts.system is None and bool(defaults.system.params)
    system = _text(texts.system) if texts.system is not None else None
    user = _text(texts.user) if texts.user is not None else None
    templates = _Templates(defaults.renderer, [n for n, r in uses.items() if r == "variable"])
    if system is not None:
        templates.check(system, defaults.system.params)
    elif fills_system:
        templates.check(defaults.system.text, defaults.system.params)
    if user is not None:
        templates.check(user, defaults.user.params)
    # Make the only unused parameter the user message, unless there is one, and check the
    # rest.
    unused = templates.unused
    if "user" in uses.values():
        if user is not None:
            msg = "has a @user_message and a parameter for the user message; only one is allowed"
            raise UsageError(msg)
    elif user is None and len(unused) == 1:
        uses[unused.pop()] = "user"
    elif user is None and not unused and not _has_content(uses, defaults):
        msg = "has no user message; add a @user_message, or a parameter for one"
        raise UsageError(msg)
    if unused:
        msg = (
            f"does not use {', '.join(unused)}; use it in a @user_message or @system_message,"
            " or annotate the parameter that is the user's text: Annotated[str, UserMessage]"
        )
        raise UsageError(msg)
    send = sender_for(hints["return"], is_async=inspect.iscoroutinefunction(function))
    return Method(signature, uses, system, user, fills_system, send)


def _with_types(hint: Any, given: TypeArguments) -> Any:
    """Return *hint* with its type variables replaced; unchanged if one is unknown."""
    try:
        return resolve_variables(hint, given)
    except UnknownTypeError:
        return hint


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


# --- uses of parameters --------------------------------------------------------------------


def _uses(
    signature: inspect.Signature, hints: Mapping[str, Any]
) -> Iterator[tuple[str, ParameterUse]]:
    seen: set[ParameterUse] = set()
    for name, parameter in list(signature.parameters.items())[1:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            msg = f"takes {parameter}; every parameter needs a name"
            raise UsageError(msg)
        if is_memory_id(parameter.default):
            msg = f"has MemoryId as the default of {name}; write {name}: Annotated[str, MemoryId]"
            raise UsageError(msg)
        use = _use(hints.get(name))
        if use in seen and use not in ("variable", "media"):
            msg = f"has several parameters for the {use.replace('_', ' ')}; only one is allowed"
            raise UsageError(msg)
        seen.add(use)
        yield name, use


def _use(annotation: Any) -> ParameterUse:
    plain, marks = unannotated(annotation)
    marked: list[ParameterUse] = [use for use in map(_use_of_mark, marks) if use is not None]
    if marked:
        return marked[0]
    kinds = [kind for kind in members_of(plain) if kind is not type(None)]
    if any(map(is_memory_id, kinds)):
        msg = "has a parameter of type MemoryId, which marks a type: write Annotated[str, MemoryId]"
        raise UsageError(msg)
    if kinds != [plain]:  # as in `Annotated[...] | None`
        uses: set[ParameterUse] = {_use(kind) for kind in kinds}
        if len(uses) == 1:
            return uses.pop()
    if any(map(_holds_memory_id, get_args(plain))):
        msg = "has a MemoryId inside a type; write it beside the whole: Annotated[str, MemoryId]"
        raise UsageError(msg)
    if UserMessage in kinds:
        return "user"
    if any(isinstance(kind, type) and issubclass(kind, ChatOptions) for kind in kinds):
        return "options"
    if ToolContext in kinds:
        return "tool_context"
    is_media = [kind is Media or Media in get_args(kind) for kind in kinds]
    return "media" if kinds and all(is_media) else "variable"


def _use_of_mark(mark: Any) -> ParameterUse | None:
    if is_memory_id(mark):
        return "memory_id"
    return _USE_OF_MARK.get(mark if isinstance(mark, type) else type(mark))


def _holds_memory_id(kind: Any) -> bool:
    plain, marks = unannotated(kind)
    return any(map(is_memory_id, marks)) or any(map(_holds_memory_id, get_args(plain)))


def _has_content(uses: Mapping[str, ParameterUse], defaults: RequestSettings) -> bool:
    return "media" in uses.values() or bool(defaults.user.text or defaults.messages)


# --- templates ------------------------------------------------------------------------------


class _Templates:
    """Checks templates without values, and records which variables they use."""

    def __init__(self, renderer: TemplateRenderer, variables: Iterable[str]) -> None:
        self._renderer = renderer
        self._variables = tuple(variables)
        self.unused = list(self._variables)

    def check(self, template: str, known: Mapping[str, Any]) -> None:
        """Check that *known* and the variables provide all values of *template*.

        Raises:
            UsageError: A value is missing.
        """
        values = _Values([*known, *self._variables])
        try:
            self._renderer(template, values)
        except (TemplateError, KeyError) as error:
            has = ", ".join(self._variables) or "no parameter for them"
            missing = error.missing if isinstance(error, TemplateError) else error.args
            msg = f"has a template that needs {', '.join(missing) or error}; it has {has}"
            raise UsageError(msg) from error
        except Exception:  # noqa: BLE001 - a renderer of the application may need real values
            self.unused = []
            return
        self.unused = [name for name in self.unused if name not in values.used]


class _Values(Mapping[str, Any]):
    """Placeholder values for a template; records which names are used."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = dict.fromkeys(names)
        self.used: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        self.used.add(name)
        return _PLACEHOLDER

    def __iter__(self) -> Iterator[str]:
        self.used.update(self._names)  # after iteration, any of them may be used
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class _Placeholder:
    """A value with all attributes."""

    def __getattr__(self, _name: str) -> "_Placeholder":
        return self


_PLACEHOLDER = _Placeholder()


T = TypeVar("T")


def ai_service(interface: "TypeForm[T]", client: ChatClient) -> T:
    """Return an implementation of *interface* that calls the model of *client*.

    Methods without a body, and those with a `@system_message` or `@user_message`, become requests;
    others are inherited. A parameter is

    - the user message, if it is `Annotated[str, UserMessage]`, a `UserMessage`, or the only
      parameter that no template uses;
    - the conversation id, if it is `Annotated[..., MemoryId]`;
    - content of the user message, if it is a `Media` or a collection of them;
    - options of the request, if it is a `ChatOptions`;
    - values for the tools, if it is `Annotated[..., ToolContext]` or a `ToolContext`;
    - otherwise a variable of the templates.

    The return annotation determines the result: a text, an entity of any type that `entity()`
    accepts, a `Result` of these, a response, or None; for a stream, an iterator of texts, partial
    entities or events. `async def` methods and asynchronous iterators are asynchronous.

    An attribute that is annotated as a `ChatMemory`, such as `memory: ChatMemory`, is the memory of
    the client, for reading and clearing conversations.

    Args:
        interface: A `Protocol`, or a class with abstract methods; if it is generic, with types for
            its type variables: `Extractor[Person]`, or a subclass that names them.
        client: The client; its tools, advisors, options and texts apply to all methods.

    Raises:
        UsageError: A member cannot be implemented; the message has its name and the reason.
        WrongTypeError: *client* is not a `ChatClient`, but a model for example.
    """
    kind = cast("type[Any]", get_origin(interface) or interface)
    if not inspect.isclass(kind):
        msg = f"{interface!r} is not a class; a service implements a Protocol or an abstract class"
        raise UsageError(msg)
    check_type(
        "the client of a service", client, ChatClient, "wrap a model: ChatClient.create(model)"
    )
    members: dict[str, Any] = {}
    for name, declared in _unimplemented(kind):
        try:
            members[name] = _implementation(interface, name, declared, client)
        except UsageError as error:
            msg = f"{kind.__name__}.{name} {error}"
            raise UsageError(msg) from error
    if not any(map(inspect.isfunction, members.values())):
        msg = (
            f"{kind.__name__} has no method to implement: one without a body in a Protocol, or an"
            " abstract one"
        )
        raise UsageError(msg)
    members["__repr__"] = lambda _self: f"ai_service({kind.__name__}, {client!r})"
    service = types.new_class(kind.__name__, (kind,), exec_body=lambda body: body.update(members))
    service.__module__ = kind.__module__
    return cast("T", service())


def _implementation(interface: Any, name: str, declared: Any, client: ChatClient) -> Any:
    """Return the implementation of a member that *interface* only declares.

    Raises:
        UsageError: It cannot be implemented; the message is the end of a sentence after its name.
    """
    defaults = client.prompt().settings
    kind = get_origin(interface) or interface
    if inspect.isfunction(declared):
        method = method_of(declared, interface, _texts(kind, declared), defaults)
        return _method_implementation(declared, method, client)
    is_property = isinstance(declared, property)
    try:
        hints = get_type_hints(declared.fget if is_property else kind)
    except (NameError, TypeError) as error:
        msg = f"has an annotation that cannot be resolved ({error})"
        raise UsageError(msg) from error
    annotation = hints.get("return" if is_property else name)
    if not (inspect.isclass(annotation) and issubclass(annotation, ChatMemory)):
        msg = "is not a plain method, so a model cannot implement it"
        raise UsageError(msg)
    memories = [getattr(advisor, "memory", None) for advisor in defaults.advisors]
    # By identity: several advisors may share one.
    distinct = list({id(each): each for each in memories if isinstance(each, annotation)}.values())
    if len(distinct) != 1:
        number = "none; add one with default_advisors(MessageChatMemoryAdvisor(memory))"
        if distinct:
            number = f"{len(distinct)} of them; annotate it with a class of only one"
        msg = f"needs the client's {annotation.__name__}, and the client has {number}"
        raise UsageError(msg)
    return distinct[0]


def _method_implementation(function: Callable[..., Any], method: Method, client: ChatClient) -> Any:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            return await method(client.prompt(), *args, **kwargs)

        implementation: Any = call_async
    else:

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return method(client.prompt(), *args, **kwargs)

        implementation = call
    implementation.__isabstractmethod__ = False
    return implementation


def _texts(kind: type[Any], function: Callable[..., Any]) -> Texts:
    texts = texts_of(function)
    if texts.system is not None:
        return texts
    of_class = next((t.system for t in map(texts_of, kind.__mro__) if t.system is not None), None)
    return Texts(of_class, texts.user)


def _unimplemented(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the members that *kind* declares without a value, those of base classes first."""
    abstract: frozenset[str] = getattr(kind, "__abstractmethods__", frozenset())
    is_protocol = getattr(kind, "_is_protocol", False)
    members: dict[str, Any] = {}
    for cls in reversed(kind.__mro__):
        if cls not in (object, Protocol, Generic):
            members.update(vars(cls))
            members |= dict.fromkeys(set(annotated_names(cls)) - set(vars(cls)))
    for name, member in {
        name: member for name, member in members.items() if not name.startswith("__")
    }.items():
        marked = inspect.isfunction(member) and texts_of(member) != Texts()
        if marked or name in abstract or (is_protocol and _has_no_value(member)):
            yield name, member


def _has_no_value(member: Any) -> bool:
    if inspect.isfunction(member):
        return _is_stub(member)
    if isinstance(member, staticmethod | classmethod):
        return _is_stub(member.__func__)
    if isinstance(member, property):
        return member.fget is None or _is_stub(member.fget)
    return member is None


_LOADING = {"LOAD_CONST", "LOAD_COMMON_CONSTANT", "RETURN_CONST"}  # the second since Python 3.15
_STUB = {
    *_LOADING,
    "CALL_INTRINSIC_1",
    "NOP",
    "POP_TOP",
    "RERAISE",
    "RESUME",
    "RETURN_GENERATOR",
    "RETURN_VALUE",
}  # the instructions of functions without a body, in all versions of Python


def _is_stub(function: Any) -> bool:
    """Return whether the body of *function* is only `...`, `pass` or a docstring."""
    steps = list(dis.get_instructions(function))
    loaded = {step.argval for step in steps if step.opname in _LOADING}
    return all(step.opname in _STUB for step in steps) and loaded <= {None}
