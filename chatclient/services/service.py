"""Makes a service of an interface and a client."""

import dis
import functools
import inspect
import types
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast, get_type_hints

from chatclient.annotations import annotated_names
from chatclient.chain import Advisor
from chatclient.checks import check_kind
from chatclient.client import ChatClient
from chatclient.errors import UsageError
from chatclient.memory import ChatMemory
from chatclient.services.markers import Texts, texts_of
from chatclient.services.methods import Method, method_of

if TYPE_CHECKING:
    # `type[T]` takes no class that cannot be instantiated, which is what interfaces are.
    from typing_extensions import TypeForm

T = TypeVar("T")


def ai_service(interface: "TypeForm[T]", client: ChatClient) -> T:
    """Return an object that does what *interface* says by asking *client*'s model.

    The methods without a body, and those with a `@system_message` or `@user_message`, become
    requests; the others stay. A parameter is

    - what the user says, when it is `Annotated[str, UserMessage]`, a `UserMessage`, or the one
      parameter that no template uses;
    - the conversation's id, when it is `Annotated[..., MemoryId]`;
    - content, when it is a `Media` or a collection of them;
    - options of the call, when it is a `ChatOptions`;
    - what tools are told, when it is `Annotated[..., ToolContext]` or a `ToolContext`;
    - else a variable of the templates.

    What a method returns is what it is declared to: a text, an entity of any type that
    `entity()` takes, a `Result` of these, a response, nothing; an iterator of texts, partial
    entities or events for a stream. `async def` methods and asynchronous iterators ask
    asynchronously.

    An attribute that is declared to be a `ChatMemory`, such as `memory: ChatMemory`, is the memory
    of the client, to read and to clear conversations.

    Args:
        interface: A `Protocol`, or a class with abstract methods.
        client: Asks the model; its tools, advisors, options and texts are those of the methods.

    Raises:
        UsageError: A method cannot be carried out, or there is no memory to give; the message
            names what it is about and says why.
        WrongTypeError: *client* is something else, such as a model.
    """
    kind = cast("type[Any]", interface)
    if not inspect.isclass(kind):
        msg = f"{interface!r} is not a class; a service is made of a Protocol or an abstract class"
        raise UsageError(msg)
    check_kind(
        "the client of a service", client, ChatClient, "wrap a model: ChatClient.create(model)"
    )
    members: dict[str, Any] = {}
    for name, declared in _wanted(kind):
        try:
            members[name] = _made(kind, name, declared, client)
        except UsageError as error:
            msg = f"{kind.__name__}.{name} {error}"
            raise UsageError(msg) from error
    if not any(map(inspect.isfunction, members.values())):
        msg = (
            f"{kind.__name__} has no method for a model to carry out: one without a body in a"
            " Protocol, or an abstract one"
        )
        raise UsageError(msg)
    members["__repr__"] = lambda _self: f"ai_service({kind.__name__}, {client!r})"
    service = types.new_class(kind.__name__, (kind,), exec_body=lambda body: body.update(members))
    service.__module__ = kind.__module__
    return cast("T", service())


def _made(kind: type[Any], name: str, declared: Any, client: ChatClient) -> Any:
    """Return what a service has in place of a member that its interface only declares.

    Raises:
        UsageError: Nothing can take its place; the message goes on after the member's name.
    """
    defaults = client.prompt().spec
    if inspect.isfunction(declared):
        method = method_of(declared, _texts(kind, declared), defaults)
        return _implemented(declared, method, client)
    wanted = _type_of(kind, name, declared)
    if not (inspect.isclass(wanted) and issubclass(wanted, ChatMemory)):
        msg = "is not a plain method, so a model cannot carry it out"
        raise UsageError(msg)
    return _memory_of(defaults.advisors, wanted)


def _type_of(kind: type[Any], name: str, declared: Any) -> Any:
    """Return what a property or an attribute is declared to be; None where it is not.

    Raises:
        UsageError: That is unknown; the message goes on after the member's name.
    """
    is_property = isinstance(declared, property)
    try:
        hints = get_type_hints(declared.fget if is_property else kind)
    except (NameError, TypeError) as error:
        msg = f"has an annotation that cannot be resolved ({error})"
        raise UsageError(msg) from error
    return hints.get("return" if is_property else name)


def _memory_of(advisors: Iterable[Advisor], kind: type[ChatMemory]) -> ChatMemory:
    """Return the one memory of *kind* that *advisors* bring.

    Raises:
        UsageError: There is none, or another one beside it.
    """
    memories = [getattr(advisor, "memory", None) for advisor in advisors]
    # By identity: several advisors may share one.
    found = list({id(each): each for each in memories if isinstance(each, kind)}.values())
    if len(found) != 1:
        has = "none; give it one with default_advisors(MessageChatMemoryAdvisor(memory))"
        if found:
            has = f"{len(found)} of them; declare it as the class that only one is of"
        msg = f"wants the client's {kind.__name__}, and that has {has}"
        raise UsageError(msg)
    return found[0]


def _implemented(function: Callable[..., Any], method: Method, client: ChatClient) -> Any:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def ask_async(*args: Any, **kwargs: Any) -> Any:
            return await method(client, *args, **kwargs)

        implementation: Any = ask_async
    else:

        @functools.wraps(function)
        def ask(*args: Any, **kwargs: Any) -> Any:
            return method(client, *args, **kwargs)

        implementation = ask
    implementation.__isabstractmethod__ = False
    return implementation


def _texts(kind: type[Any], function: Callable[..., Any]) -> Texts:
    own = texts_of(function)
    whole = next((t.system for t in map(texts_of, kind.__mro__) if t.system is not None), None)
    return Texts(whole if own.system is None else own.system, own.user)


def _wanted(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    """Yield what *kind* declares and does not have, base classes' first."""
    abstract: frozenset[str] = getattr(kind, "__abstractmethods__", frozenset())
    is_protocol = getattr(kind, "_is_protocol", False)
    for name, member in _declared(kind).items():
        marked = inspect.isfunction(member) and texts_of(member) != Texts()
        if marked or name in abstract or (is_protocol and _has_no_value(member)):
            yield name, member


def _declared(kind: type[Any]) -> dict[str, Any]:
    """Return the members of *kind* by name; of those that are only annotated there is None."""
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
}  # what functions without a body compile to, over the versions of Python


def _is_stub(function: Any) -> bool:
    """Return whether *function* does nothing: `...`, `pass`, or a docstring alone."""
    steps = list(dis.get_instructions(function))
    loaded = {step.argval for step in steps if step.opname in _LOADING}
    return all(step.opname in _STUB for step in steps) and loaded <= {None}
