"""What a request may ask of a model beside its messages."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from typing import Any, Self, TypedDict, get_args, get_origin, get_type_hints

from chatclient.checks import check_kind, check_method, check_model_name
from chatclient.errors import UsageError
from chatclient.tool import ToolCallback, ToolDefinition
from chatclient.values import EMPTY, FrozenTree, deep_frozen, frozen, merged

_NUMBERS = (
    *("temperature", "top_p", "top_k", "max_tokens"),
    *("presence_penalty", "frequency_penalty", "seed"),
)
_TOOL_CHOICES = ("auto", "none", "required")


class OptionValues(TypedDict, total=False):
    """The options of `ChatOptions`, given by name, so that type checkers find misspelt ones."""

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
    output_schema: Mapping[str, Any] | None
    tool_callbacks: Iterable[ToolCallback] | None
    tool_names: str | Iterable[str] | None
    tool_context: Mapping[str, Any]
    internal_tool_execution_enabled: bool | None
    extra: Mapping[str, Any]


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True, repr=False)
class ChatOptions:
    """Options that every provider knows; each provider's own subclass adds its own.

    None means "not set": the model's default applies, then the provider's. When two are merged,
    what is set on the one nearer to the request wins; `tool_context` and `extra` merge key by key.

    Mappings and collections are copied, and cannot be changed; of an option that has several
    values, one will do.

    Attributes:
        model: Which model.
        temperature: Randomness, 0 to 2 with most providers.
        top_p: Sample among the likeliest tokens that have this probability together, 0 to 1.
        top_k: Sample among this many of the likeliest tokens, where the provider has it.
        max_tokens: How many tokens the answer may have at most.
        stop: Texts at which to stop.
        presence_penalty: Against repeated topics, -2 to 2 with most providers.
        frequency_penalty: Against repeated words, -2 to 2 with most providers.
        seed: Makes sampling repeatable, as far as the provider can.
        tool_choice: `auto`, `none`, `required`, or the name of the tool that must be called.
        parallel_tool_calls: Whether the model may ask for several tools at once.
        output_schema: A JSON Schema that the answer must satisfy.
        tool_callbacks: The tools to offer.
        tool_names: Tools to offer by name; the client's resolver knows them.
        tool_context: What the application tells its tools.
        internal_tool_execution_enabled: False hands tool calls back unexecuted.
        extra: Fields of the provider's request that this library does not know. Objects are merged
            into those that it sends (one of another `type` replaces it), and tools are added to the
            others.

    Raises:
        UsageError: A number is not one, something else is of the wrong kind, or the model's name
            is blank.
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
    output_schema: Mapping[str, Any] | None = None
    tool_callbacks: Sequence[ToolCallback] | None = None
    tool_names: str | Sequence[str] | None = None
    tool_context: Mapping[str, Any] = EMPTY
    internal_tool_execution_enabled: bool | None = None
    extra: Mapping[str, Any] = EMPTY

    def __post_init__(self) -> None:
        if self.model is not None:
            check_model_name(self.model)
        if self.tool_context:
            check_kind("tool_context", self.tool_context, Mapping)
        object.__setattr__(self, "tool_context", frozen(self.tool_context))
        for name in _NUMBERS:
            value = getattr(self, name)
            if value is not None and not isinstance(value, int | float):
                msg = f"{name} must be a number, not {value!r}"
                raise UsageError(msg)
        kind: Any = type(self)
        for name, form in _forms(kind):
            given = getattr(self, name)
            if given is None or given is EMPTY or type(given) is FrozenTree:
                continue
            kept = _kept(name, given, form)
            if kept is not given:
                object.__setattr__(self, name, kept)

    def __repr__(self) -> str:
        values = self.set_values()
        if self.tool_context:  # what tools are told may be secret, and prompts are logged
            values["tool_context"] = sorted(self.tool_context, key=str)
        shown = ", ".join(f"{name}={value!r}" for name, value in values.items())
        return f"{type(self).__name__}({shown})"

    def mutate(self, **changes: Any) -> Self:
        """Return a copy with the given options changed.

        Raises:
            UsageError: This provider has no such option.
        """
        return replace(self, **checked(type(self), changes))

    def merge(self, over: "ChatOptions | None") -> "ChatOptions":
        """Return these options with those set in *over* on top.

        The result is of the more specific of the two types. What only a foreign provider knows is
        dropped.
        """
        if over is None or over is NO_OPTIONS:
            return self
        check_kind("options", over, ChatOptions, "write ChatOptions(temperature=0.2)")
        kind = type(over) if isinstance(over, type(self)) else type(self)
        changes = over.set_values()
        if kind is not type(self):
            return kind(**_merged_values(self.set_values(), changes))
        known = _names(kind)
        changes = {name: value for name, value in changes.items() if name in known}
        if not changes:
            return self
        return kind(**_merged_values(self.set_values(), changes))

    def set_values(self) -> dict[str, Any]:
        """Return the options that are set, by name."""
        return {
            name: value
            for name in _names(type(self))
            if (value := getattr(self, name)) is not None and value is not EMPTY
        }


@cache
def _forms(kind: type[Any]) -> tuple[tuple[str, tuple[type, ...]], ...]:
    """Return which options of *kind* are mappings, have several values, or may be either."""
    found: dict[str, tuple[type, ...]] = {}
    for name, hint in get_type_hints(kind).items():
        origins = [get_origin(each) for each in get_args(hint) or (hint,)]
        origins.append(get_origin(hint))
        form = tuple(
            each
            for each in (Mapping, Sequence)
            if any(isinstance(o, type) and issubclass(o, each) for o in origins)
        )
        if form and name in _names(kind) and name != "tool_context":
            found[name] = form
    return tuple(found.items())


def _kept(name: str, given: Any, form: tuple[type, ...]) -> Any:
    """Return *given* as options keep it: nobody can change it, and it can be hashed."""
    if name == "tool_callbacks":
        return _callbacks(given)
    if name in ("output_schema", "extra"):
        check_kind(name, given, Mapping)
    if Sequence not in form:
        return deep_frozen(given) or EMPTY if name == "extra" else deep_frozen(given)
    if isinstance(given, Mapping) and Mapping in form:
        return deep_frozen(given)
    # One in place of several is one of them.
    several = (given,) if isinstance(given, str | Mapping) else given
    check_kind(name, several, Iterable, "put a single one into a list")
    if type(several) is tuple and all(type(each) in _SETTLED for each in several):
        return several
    return tuple(_hashable(each) for each in several)


_SETTLED = (str, FrozenTree)


def _hashable(value: Any) -> Any:
    value = deep_frozen(value)
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def _callbacks(given: Any) -> tuple[ToolCallback, ...]:
    hint = "functions go into .tools(...), or through tool_callbacks(function)"
    if type(given) is tuple:  # such as that of an earlier round: its first one tells enough
        several, suspects = given, given[:1]
    else:
        several = tuple(given) if isinstance(given, Iterable) else (given,)
        suspects = several
    for each in suspects:
        if isinstance(each, ToolDefinition):
            hint = "a definition alone is offered as ExternalTool(definition)"
        check_method("a tool callback", each, "invoke", hint)
    return several


def _merged_values(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    values = {**below, **above}
    for name in ("tool_context", "extra"):
        if name in below and name in above:
            values[name] = merged(below[name], above[name])
    return values


def _names(kind: type[ChatOptions]) -> Collection[str]:
    return kind.__dataclass_fields__


def model_options(kind: type[ChatOptions], model: str, options: ChatOptions | None) -> ChatOptions:
    """Return what holds for each request to *model*: *options*, as *kind* knows them.

    Raises:
        UsageError: There is no such name of a model, or *options* are none.
    """
    check_model_name(model)
    return kind(model=model).merge(options)


def checked(kind: type[ChatOptions], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return *values*, known to be options of *kind*.

    Raises:
        UsageError: One of them is not an option of *kind*.
    """
    names = _names(kind)
    unknown = sorted(set(values) - set(names))
    if unknown:
        near = [name for each in unknown for name in get_close_matches(each, names, n=1)]
        meant = f"did you mean {', '.join(map(repr, near))}? Otherwise " if near else ""
        msg = (
            f"{kind.__name__} has no option {', '.join(map(repr, unknown))}; "
            f"{meant}send fields it does not model with extra={{...}}"
        )
        raise UsageError(msg)
    return dict(values)


def check_tool_names(options: ChatOptions) -> None:
    """Make sure that nothing is known by its name only, where nobody makes a tool of that.

    Raises:
        UsageError: A name is not that of one of the tools.
    """
    offered = {callback.definition.name for callback in options.tool_callbacks or ()}
    if unknown := [name for name in options.tool_names or () if name not in offered]:
        msg = (
            f"the resolver of a client makes tools of names, such as {unknown}; a model that is"
            " called without one must be given the tools themselves: tool_callbacks=[...]"
        )
        raise UsageError(msg)


def check_tool_choice(options: ChatOptions) -> None:
    """Make sure that a tool that must be called is offered; providers only say that it is not.

    Raises:
        UsageError: It is not.
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
