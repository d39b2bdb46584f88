"""`ai_service`: implements an interface with a client."""

import dis
import functools
import inspect
import types
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast, get_origin, get_type_hints

from chatclient._internal.annotations import annotated_names
from chatclient._internal.checks import check_type
from chatclient.chain.chain import Advisor
from chatclient.client.client import ChatClient
from chatclient.errors import UsageError
from chatclient.memory.chat_memory import ChatMemory
from chatclient.services.markers import Texts, texts_of
from chatclient.services.methods import Method, method_of

if TYPE_CHECKING:
    # Type checkers do not accept abstract classes and Protocols for `type[T]`.
    from typing_extensions import TypeForm

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
    annotation = _annotation_of(kind, name, declared)
    if not (inspect.isclass(annotation) and issubclass(annotation, ChatMemory)):
        msg = "is not a plain method, so a model cannot implement it"
        raise UsageError(msg)
    return _memory_of(defaults.advisors, annotation)


def _annotation_of(kind: type[Any], name: str, declared: Any) -> Any:
    """Return the type of a property or an attribute; None without annotation.

    Raises:
        UsageError: The annotation cannot be resolved.
    """
    is_property = isinstance(declared, property)
    try:
        hints = get_type_hints(declared.fget if is_property else kind)
    except (NameError, TypeError) as error:
        msg = f"has an annotation that cannot be resolved ({error})"
        raise UsageError(msg) from error
    return hints.get("return" if is_property else name)


def _memory_of(advisors: Iterable[Advisor], kind: type[ChatMemory]) -> ChatMemory:
    """Return the only memory of type *kind* among *advisors*.

    Raises:
        UsageError: There are none or several.
    """
    memories = [getattr(advisor, "memory", None) for advisor in advisors]
    # By identity: several advisors may share one.
    distinct = list({id(each): each for each in memories if isinstance(each, kind)}.values())
    if len(distinct) != 1:
        number = "none; add one with default_advisors(MessageChatMemoryAdvisor(memory))"
        if distinct:
            number = f"{len(distinct)} of them; annotate it with a class of only one"
        msg = f"needs the client's {kind.__name__}, and the client has {number}"
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
    for name, member in _declared(kind).items():
        marked = inspect.isfunction(member) and texts_of(member) != Texts()
        if marked or name in abstract or (is_protocol and _has_no_value(member)):
            yield name, member


def _declared(kind: type[Any]) -> dict[str, Any]:
    """Return the members of *kind* by name; None for those that are only annotated."""
    members: dict[str, Any] = {}
    for cls in reversed(kind.__mro__):
        if cls not in (object, Protocol, Generic):
            members.update(vars(cls))
            members |= dict.fromkeys(set(annotated_names(cls)) - set(vars(cls)))
    return {name: member for name, member in members.items() if not name.startswith("__")}


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
