"""`ChatOptions`: the options of a request to a chat model."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cache
from typing import (
    Any,
    Generic,
    Literal,
    Self,
    TypedDict,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)
from weakref import ref

from chatclient._internal.checks import (
    check_choice,
    check_method,
    check_model_name,
    check_type,
    names,
)
from chatclient._internal.frozen import EMPTY, FrozenTree, deep_frozen, frozen, merged
from chatclient.chat.tool import ToolCallback, ToolDefinition
from chatclient.errors import UnsupportedOptionError, UsageError

_NUMBERS = (
    *("temperature", "top_p", "top_k", "max_tokens"),
    *("presence_penalty", "frequency_penalty", "seed"),
)
_TOOL_CHOICES = ("auto", "none", "required")

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "max"]
"""How much a model reasons; `minimal` and `max` are the least and the most that it can."""

CachedUpTo = Literal["auto", "tools", "system", "conversation"]
"""The cached prefix of a prompt; `auto` is what another request will probably begin with."""


class OptionValues(TypedDict, total=False):
    """The keyword arguments of methods that change `ChatOptions`, for type checkers."""

    model: str | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    max_tokens: int | None
    stop: str | Iterable[str] | None
    presence_penalty: float | None
    frequency_penalty: float | None
    seed: int | None
    tool_choice: str | None
    parallel_tool_calls: bool | None
    reasoning: ReasoningEffort | int | None
    cache: CachedUpTo | None
    service_tier: str | None
    user_id: str | None
    output_schema: Mapping[str, Any] | None
    tool_callbacks: Iterable[ToolCallback] | None
    tool_names: str | Iterable[str] | None
    tool_context: Mapping[str, Any]
    internal_tool_execution_enabled: bool | None
    extra: Mapping[str, Any]


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True, repr=False)
class ChatOptions:
    """Options common to all providers; subclasses of providers add their own.

    None means "not set": the model's default applies, then the provider's. When options are merged,
    those nearer to the request win; `tool_context` and `extra` are merged key by key. *unset* drops
    inherited values, as `.options(temperature=None)` does.

    Mappings and collections are copied and frozen. A single value is accepted for options with
    several values.

    Not every model takes all of them. One that a model does not take is dropped, with one line in
    the log, if it is among the *defaults*; otherwise, the request raises `UnsupportedOptionError`
    and is not sent.

    Attributes:
        model: The name of the model.
        temperature: Randomness; 0 to 2 for most providers.
        top_p: Sample from the most likely tokens with this total probability, 0 to 1.
        top_k: Sample from this number of most likely tokens, if the provider supports it.
        max_tokens: The maximum number of tokens of the answer.
        stop: Texts at which the answer ends.
        presence_penalty: Reduces repeated topics; -2 to 2 for most providers.
        frequency_penalty: Reduces repeated words; -2 to 2 for most providers.
        seed: Makes sampling reproducible, as far as the provider supports it.
        tool_choice: `auto`, `none`, `required`, or the name of the tool that must be called.
        parallel_tool_calls: Whether a message of the model may have several tool calls.
        reasoning: How much the model reasons: an effort, or the maximum number of tokens. Options
            of one provider for the same, such as `reasoning_effort` or `thinking`, take precedence
            unless they are defaults and this option is not.
        cache: The prefix of the prompt to cache, where the provider does not cache by itself: the
            tools, also the system text, or also the conversation. With `auto`, the conversation
            only if another request will probably continue it.
        service_tier: The service tier of the request, such as `default`, `flex` or `priority`.
        user_id: The end user, for the provider's abuse detection; not a name or an address.
        output_schema: A JSON Schema that the answer must satisfy.
        tool_callbacks: The tools to offer.
        tool_names: Names of tools to offer; the client's resolver finds them.
        tool_context: Values for the tools, not sent to the model.
        internal_tool_execution_enabled: If False, tool calls are returned unexecuted.
        extra: Fields of the provider's request that this library does not model. Objects are merged
            with those that are sent (those of another `type` replace them); tools, messages and
            system texts are appended.
        unset: The names of options whose inherited values do not apply.
        defaults: The names of options that are defaults of a client or a model; see `as_defaults`.

    Raises:
        UsageError: A value has the wrong type, *reasoning* or *cache* is not a known value, or the
            model's name is blank.
    """

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    stop: str | Sequence[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    tool_choice: str | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningEffort | int | None = None
    cache: CachedUpTo | None = None
    service_tier: str | None = None
    user_id: str | None = None
    output_schema: Mapping[str, Any] | None = None
    tool_callbacks: Sequence[ToolCallback] | None = None
    tool_names: str | Sequence[str] | None = None
    tool_context: Mapping[str, Any] = EMPTY
    internal_tool_execution_enabled: bool | None = None
    extra: Mapping[str, Any] = EMPTY
    unset: str | Collection[str] = frozenset()
    defaults: frozenset[str] = field(default=frozenset(), compare=False)

    def __post_init__(self) -> None:
        if self.model is not None:
            check_model_name(self.model)
        if self.tool_context:
            check_type("tool_context", self.tool_context, Mapping)
        object.__setattr__(self, "tool_context", frozen(self.tool_context))
        if self.unset:
            check_options(type(self), dict.fromkeys(unset := names(self.unset)))
            object.__setattr__(self, "unset", unset)
        for name in _NUMBERS:
            value = getattr(self, name)
            if value is not None and not isinstance(value, int | float):
                msg = f"{name} must be a number, not {value!r}"
                raise UsageError(msg)
        if self.reasoning is not None or self.cache is not None:
            check_choice("cache", self.cache, None, CachedUpTo)
            _check_reasoning(self.reasoning)
        kind: Any = type(self)
        for name, containers in _container_options(kind):
            given = getattr(self, name)
            if given is None or given is EMPTY or type(given) is FrozenTree:
                continue
            value = _frozen_value(name, given, containers)
            if value is not given:
                object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        values = self.set_values()
        if self.tool_context:  # may contain secrets, and prompts are logged
            values["tool_context"] = sorted(self.tool_context, key=str)
        if self.unset:
            values["unset"] = sorted(self.unset)
        shown = ", ".join(f"{name}={value!r}" for name, value in values.items())
        return f"{type(self).__name__}({shown})"

    def mutate(self, **changes: Any) -> Self:
        """Return a copy with the given options replaced.

        Raises:
            UsageError: There is no such option.
        """
        check_options(type(self), changes)
        return replace(self, **changes, defaults=self.defaults - changes.keys())

    def as_defaults(self) -> Self:
        """Return a copy in which all set options are *defaults*, which a model may drop."""
        return replace(self, defaults=frozenset(self.set_values()))

    def merge(self, over: "ChatOptions | None") -> "ChatOptions":
        """Return these options, overridden by those set in *over*.

        The result has the more specific of the two types. If they are types of different providers,
        it has the type of these options, without the *defaults* in *over* that it does not have.

        Raises:
            UnsupportedOptionError: It does not have an option in *over* that is no default.
        """
        if over is None or over is NO_OPTIONS:
            return self
        check_type("options", over, ChatOptions, "write ChatOptions(temperature=0.2)")
        kind = type(over) if isinstance(over, type(self)) else type(self)
        names = _names(kind)
        changes = {name: value for name, value in over.set_values().items() if name in names}
        if not issubclass(kind, type(over)):
            _check_foreign(self, over, names)
        dropped = {name for name in over.unset if name in names}
        if not changes and not dropped and kind is type(self):
            return self
        values = {name: value for name, value in self.set_values().items() if name not in dropped}
        unset = frozenset((dropped | set(self.unset)) - changes.keys())
        inherited = self.defaults - changes.keys() - dropped
        defaults = inherited | (over.defaults & changes.keys())
        return kind(**_merged_values(values, changes), unset=unset, defaults=defaults)

    def set_values(self) -> dict[str, Any]:
        """Return the options that are set, by name."""
        return {
            name: value
            for name in _names(type(self))
            if (value := getattr(self, name)) is not None and value is not EMPTY
        }


def _check_foreign(options: ChatOptions, over: ChatOptions, names: AbstractSet[str]) -> None:
    foreign = over.set_values().keys() - names - over.defaults
    if foreign:
        name, kind = min(foreign), type(options).__name__
        msg = (
            f"{type(over).__name__} sets the option {name!r}, which {kind}, the options of this"
            " model, does not have: leave it out, or send a field of the provider with"
            f" {kind}(extra={{...}})"
        )
        provider = kind.removesuffix("ChatOptions")
        raise UnsupportedOptionError(msg, option=name, provider=provider, model=options.model or "")


def options_for(kind: type[ChatOptions], options: ChatOptions) -> ChatOptions:
    """Return *options* for a model with options of *kind*, without those of other providers."""
    given = type(options)
    if issubclass(kind, given) or issubclass(given, kind):
        return options
    own = _names(given) - _names(kind)
    return replace(options, defaults=options.defaults | own)


def _check_reasoning(value: object) -> None:
    if value is None or value in get_args(ReasoningEffort):
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        efforts = ", ".join(map(repr, get_args(ReasoningEffort)))
        msg = f"reasoning must be one of {efforts} or a number of tokens, not {value!r}"
        raise UsageError(msg)


@cache
def _container_options(kind: type[Any]) -> tuple[tuple[str, tuple[type, ...]], ...]:
    """Return the options of *kind* that may be mappings or sequences, and which of these."""
    options: dict[str, tuple[type, ...]] = {}
    for name, hint in get_type_hints(kind).items():
        origins = [get_origin(each) for each in get_args(hint) or (hint,)]
        origins.append(get_origin(hint))
        containers = tuple(
            each
            for each in (Mapping, Sequence)
            if any(isinstance(o, type) and issubclass(o, each) for o in origins)
        )
        if containers and name in _names(kind) and name != "tool_context":
            options[name] = containers
    return tuple(options.items())


def _frozen_value(name: str, given: Any, containers: tuple[type, ...]) -> Any:
    """Return *given*, the value of the option *name*, immutable and hashable."""
    if name == "tool_callbacks":
        hint = "functions go into .tools(...), or through tool_callbacks(function)"
        if type(given) is tuple:  # usually checked in an earlier round
            several, unchecked = given, given[:1]
        else:
            several = tuple(given) if isinstance(given, Iterable) else (given,)
            unchecked = several
        for each in unchecked:
            if isinstance(each, ToolDefinition):
                hint = "a definition alone is offered as ExternalTool(definition)"
            if not hasattr(each, "definition"):  # as functions with `@tool`, which have `invoke`
                check_type("a tool callback", each, ToolCallback, hint)
            check_method("a tool callback", each, "invoke", hint)
        return several
    if name in ("output_schema", "extra"):
        check_type(name, given, Mapping)
    if Sequence not in containers:
        return deep_frozen(given) or EMPTY if name == "extra" else deep_frozen(given)
    if isinstance(given, Mapping) and Mapping in containers:
        return deep_frozen(given)
    several = (given,) if isinstance(given, str | Mapping) else given
    check_type(name, several, Iterable, "put a single one into a list")
    if type(several) is tuple and all(type(each) in _IMMUTABLE for each in several):
        return several
    return tuple(_hashable(each) for each in several)


_IMMUTABLE = (str, FrozenTree)


def _hashable(value: Any) -> Any:
    value = deep_frozen(value)
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def _merged_values(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    values = {**below, **above}
    for name in ("tool_context", "extra"):
        if name in below and name in above:
            values[name] = merged(below[name], above[name])
    return values


def _names(kind: type[ChatOptions]) -> AbstractSet[str]:
    """Return the names of the options of *kind*, in order."""
    key: Any = kind  # for mypy, which checks the hash of its instances
    return _cached_names(key)


@cache
def _cached_names(kind: type[ChatOptions]) -> AbstractSet[str]:
    about = ("unset", "defaults")  # about other options
    return dict.fromkeys(name for name in kind.__dataclass_fields__ if name not in about).keys()


def model_options(kind: type[ChatOptions], model: str, options: ChatOptions | None) -> ChatOptions:
    """Return the default options of *model* as an instance of *kind*.

    Raises:
        UsageError: *model* is not a valid name, or *options* are not `ChatOptions`.
    """
    check_model_name(model)
    return kind(model=model).merge(options).as_defaults()


_ELSEWHERE = {  # what other libraries have among the options
    "functions": "a request has .tools(...), and a client .default_tools(...)",
    "memory": "a client has it: .default_advisors(MessageChatMemoryAdvisor(memory))",
    "messages": "a request has .messages(...)",
    "response_format": "ask for .call().entity(type)",
    "stream": "send the request with .stream() instead of .call()",
    "system": "a request has .system(text), and a client .default_system(text)",
    "timeout": "a request has .deadline(seconds), and a model timeout=",
    "tools": "a request has .tools(...), and a client .default_tools(...)",
}


def check_options(kind: type[ChatOptions], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return *values* after a check that they are options of *kind*.

    Raises:
        UsageError: One of them is not.
    """
    names = _names(kind)
    unknown = sorted(set(values) - set(names))
    if unknown:
        from difflib import get_close_matches  # noqa: PLC0415 - imported for a message only

        elsewhere = [_ELSEWHERE[each] for each in unknown if each in _ELSEWHERE]
        if elsewhere:
            msg = f"{kind.__name__} has no option {unknown[0]!r}; {elsewhere[0]}"
            raise UsageError(msg)
        near = [name for each in unknown for name in get_close_matches(each, names, n=1)]
        suggestion = f"did you mean {', '.join(map(repr, near))}? Otherwise " if near else ""
        msg = (
            f"{kind.__name__} has no option {', '.join(map(repr, unknown))}; "
            f"{suggestion}send fields it does not model with extra={{...}}"
        )
        raise UsageError(msg)
    return dict(values)


def check_tool_names(options: ChatOptions) -> None:
    """Check the tool names of a direct call of a model, which has no resolver.

    Raises:
        UsageError: A name is not that of one of the `tool_callbacks`.
    """
    offered = {callback.definition.name for callback in options.tool_callbacks or ()}
    if unknown := [name for name in options.tool_names or () if name not in offered]:
        msg = (
            f"the resolver of a client makes tools of names, such as {unknown}; a model that is"
            " called without one must be given the tools themselves: tool_callbacks=[...]"
        )
        raise UsageError(msg)


def check_tool_choice(options: ChatOptions) -> None:
    """Check that the tool named in `tool_choice` is offered.

    Raises:
        UsageError: It is not; the message lists the tools, unlike the errors of providers.
    """
    choice = options.tool_choice
    if choice is None or choice in _TOOL_CHOICES:
        return
    offered = [callback.definition.name for callback in options.tool_callbacks or ()]
    if choice not in offered:
        names = f"the tools are {', '.join(offered)}" if offered else "there are no tools"
        msg = f"tool_choice must be auto, none, required or a tool's name, not {choice!r}; {names}"
        raise UsageError(msg)


NO_OPTIONS = ChatOptions()


T = TypeVar("T")


class OptionsCache(Generic[T]):
    """Caches the value for the last options, because successive requests usually share them.

    The options are referenced weakly; otherwise the tool context of a request would live as long
    as the advisor.

    Args:
        compute: Returns the value for given options.
    """

    __slots__ = ("_compute", "_last")

    def __init__(self, compute: Callable[[ChatOptions], T]) -> None:
        self._compute = compute
        self._last: tuple[ref[ChatOptions], T] | None = None

    def get(self, options: ChatOptions) -> T:
        """Return the value for *options*."""
        last = self._last
        if last is None or last[0]() is not options:
            last = self._last = (ref(options), self._compute(options))
        return last[1]
