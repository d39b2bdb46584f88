"""Errors of constructors that are given an unknown keyword argument: what to write instead.

`lazy_exports` applies `explain_parameters` to the classes of the public packages. What the library
itself makes for each piece of a stream, each round or each step is left as it is, so that it costs
no more.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import FrozenInstanceError
from functools import partial, wraps
from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args, get_origin

from chatclient._internal.annotations import annotated_names, declared_signature
from chatclient.errors import UsageError, WrongTypeError

F = TypeVar("F", bound=Callable[..., Any])

_MANY = re.compile(r"takes (from \d+ to )?\d+ positional arguments? but \d+ (was|were) given")
_UNKNOWN = re.compile(r"got an unexpected keyword argument '(\w+)'")
_MADE_OFTEN = {  # modules and classes
    *("chatclient.chain.chain", "chatclient.chat.events", "chatclient.chat.turn"),
    *("chatclient.client.call_response", "chatclient.client.request"),
    *("chatclient.client.stream_items", "chatclient.client.stream_response"),
    *("chatclient.observability.operations", "chatclient.observability.trail"),
    *("chatclient.runtime.runtime", "chatclient.runtime.observation"),
    *("ChatResponse", "ChatResponseMetadata", "Generation", "ToolExecution"),
    "ToolRequest",
}

# Names of other libraries, and those of this one for the same; `*` stands for positional arguments.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "advisor_order": ("order",),
    "api_base": ("base_url",),
    "args": ("arguments",),
    "chat_memory": ("memory",),
    "chat_memory_repository": ("memory", "repository"),
    "chat_memory_retrieve_size": ("top_k",),
    "chunk_overlap": ("overlap",),
    "chunk_size": ("size",),
    "compaction_strategy": ("memory",),
    "compaction_trigger": ("memory",),
    "completion_tokens": ("output_tokens",),
    "data": ("text",),
    "conversation_history_enabled": ("conversation_history",),
    "content": ("text", "data", "messages", "responses"),
    "default_top_k": ("top_k",),
    "default_user_id": ("memory",),
    "disable_internal_conversation_history": ("conversation_history",),
    "document_joiner": ("joiner",),
    "document_post_processors": ("post_processors",),
    "document_retriever": ("*retrievers",),
    "endpoint": ("base_url",),
    "event_filter": ("memory",),
    "filter_expression": ("where",),
    "func": ("function",),
    "host": ("base_url",),
    "images": ("media",),
    "index": ("tool_index",),
    "input": ("arguments", "question"),
    "k": ("top_k", "max_messages"),
    "key": ("api_key",),
    "max_completion_tokens": ("max_tokens",),
    "max_iterations": ("max_rounds",),
    "max_output_tokens": ("max_tokens",),
    "max_repeat_attempts": ("max_attempts",),
    "max_steps": ("max_rounds",),
    "max_turns": ("max_rounds",),
    "message": ("content", "text", "messages"),
    "mime": ("mime_type",),
    "model_id": ("model",),
    "model_name": ("model",),
    "name": ("model",),
    "num_retries": ("max_retries",),
    "output": ("data", "text", "content", "answer"),
    "output_json_schema": ("kind",),
    "output_type": ("kind",),
    "page_content": ("text",),
    "parameters": ("input_schema",),
    "prompt": ("messages", "text"),
    "prompt_template": ("template",),
    "prompt_tokens": ("input_tokens",),
    "query_augmenter": ("augmenter",),
    "re2_advise_template": ("template",),
    "request_timeout": ("timeout",),
    "request_to_string": ("request_to_text",),
    "response_to_string": ("response_to_text",),
    "response_format": ("output_schema",),
    "responses": ("*answers",),
    "result": ("data", "text", "content"),
    "retries": ("max_retries",),
    "rpm": ("requests",),
    "search_request": ("top_k",),
    "sensitive_words": ("*forbidden",),
    "session_service": ("memory",),
    "similarity_threshold": ("threshold",),
    "similarity_threshold_all": ("threshold",),
    "stop_sequences": ("stop",),
    "system_prompt_template": ("template",),
    "system_text_advise": ("template",),
    "text": ("content", "template", "data", "messages"),
    "token": ("api_key",),
    "tokens": ("total_tokens",),
    "tool_call_id": ("id",),
    "tool_calling_manager": ("manager",),
    "tool_execution_eligibility_checker": ("eligibility",),
    "tool_execution_eligibility_predicate": ("eligibility",),
    "tool_name": ("name",),
    "tool_searcher": ("tool_index",),
    "tpm": ("tokens",),
    "type": ("mime_type",),
    "url": ("base_url", "data"),
    "usd": ("cost",),
    "user_text_advise": ("template",),
    "window": ("max_messages",),
    "window_size": ("max_messages",),
    "words": ("*forbidden",),
}

_MADE_BY: Mapping[str, str] = {
    "Advisor": "write a function: async def advisor(request, call_next)",
    "ChatClient": "write ChatClient.create(model), or ChatClient.builder(model)",
    "McpServer": "write McpServer.stdio(name, command, *args), or McpServer.http(name, url)",
    "ToolCallback": "write FunctionToolCallback(function)",
}

# What belongs to a client, under the names of this and other libraries.
_OF_A_CLIENT: Mapping[str, str] = {
    "advisors": "default_advisors(...)",
    "instructions": "default_system(text)",
    "memory": "default_advisors(MessageChatMemoryAdvisor(memory))",
    "middleware": "default_advisors(...)",
    "system": "default_system(text)",
    "system_prompt": "default_system(text)",
    "tools": "default_tools(...)",
}


_OF_A_REQUEST: Mapping[str, str] = {
    "conversation_id": "conversation(id)",
    "session_id": "conversation(id)",
}


def explain_parameters(kind: Any) -> None:
    """Let the constructor of the class *kind* suggest the right parameter or the right place.

    Values that never change say how to make a changed copy, and contracts what to make. Other
    objects, and classes whose constructors are not of this library, are left unchanged.
    """
    if not isinstance(kind, type):
        return
    if hasattr(kind, "__dataclass_params__"):
        _explain_changes(kind)
    if getattr(kind, "_is_protocol", False):
        _explain_contract(kind)
    construct = getattr(kind, "__init__", None)
    module = getattr(construct, "__module__", "")
    if not isinstance(construct, FunctionType) or not module.startswith("chatclient."):
        return
    if not _MADE_OFTEN.isdisjoint((module, kind.__name__)) or hasattr(construct, "__wrapped__"):
        return

    changed: Any = kind
    changed.__init__ = explained(construct)


def _explain_changes(kind: Any) -> None:
    """Let the error of an assignment to a frozen dataclass name it, and how to copy it."""
    if not kind.__dataclass_params__.frozen:
        return

    def refuse(self: object, name: str, value: object) -> None:
        if type(self) is not kind and name not in kind.__dataclass_fields__:
            object.__setattr__(self, name, value)  # of a subclass
            return
        way = ".mutate(...)" if hasattr(kind, "mutate") else f"dataclasses.replace(..., {name}=...)"
        msg = f"{kind.__name__} never changes: make a changed copy with {way}"
        raise FrozenInstanceError(msg)

    kind.__setattr__ = refuse


def _explain_contract(kind: Any) -> None:
    """Let the error of a protocol that is called like a class say what to write."""

    def refuse(self: object, *args: object, **kwargs: object) -> None:
        if type(self) is kind:
            way = _MADE_BY.get(kind.__name__, "write a class with its methods")
            msg = f"{kind.__name__} is a contract and is not called: {way}"
            raise WrongTypeError(msg)
        super(kind, self).__init__(*args, **kwargs)

    kind.__init__ = refuse


def explained(function: F) -> F:
    """Return *function*, a constructor or a class method that makes an object, with such errors."""

    @wraps(function)
    def explaining(owner: Any, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return function(owner, *args, **kwargs)
        except (TypeError, UsageError) as error:
            if not isinstance(error, TypeError):
                # Such as a missing key, because `key=` is no parameter.
                if unknown := _unknown(function, owner, kwargs):
                    raise WrongTypeError(_message(type(owner), unknown)) from error
                raise
            kinds = (owner if isinstance(owner, type) else type(owner)).__mro__
            kind = next(each for each in kinds if each.__module__.startswith("chatclient."))
            called = function.__name__ == "__init__" and kind.__name__ in _MADE_BY
            own = isinstance(error, UsageError)  # it says more about the value
            if called and not own and ("missing" in str(error) or kind.__name__ != "ChatClient"):
                msg = f"{kind.__name__}() is not called directly: {_MADE_BY[kind.__name__]}"
                raise WrongTypeError(msg) from error
            if _MANY.search(str(error)) and str(error).startswith(function.__qualname__):
                names = [name for name, _ in _parameters(kind)]
                by_name = f"write the others by name; its parameters are {', '.join(names)}"
                raise WrongTypeError(
                    f"{kind.__name__}() is given too many values;"
                    f" {by_name if names else 'it takes none'}"
                ) from error
            # Also the error of a class that is given what this one passes on.
            found = _UNKNOWN.search(str(error))
            if found is None or found[1] not in kwargs:
                raise
            if found[1] in dict(_parameters(kind)):  # of something that is called inside
                raise
            raise WrongTypeError(_message(kind, found[1])) from error

    return cast("F", explaining)


def _unknown(function: Callable[..., Any], owner: Any, kwargs: Mapping[str, Any]) -> str | None:
    """Return the first keyword that is no parameter of a constructor with typed keywords."""
    if isinstance(owner, type) or not any(
        each.kind is each.VAR_KEYWORD and get_args(each.annotation)
        for each in declared_signature(function).parameters.values()
    ):
        return None
    known = dict(_parameters(type(owner)))
    return next((name for name in kwargs if name not in known), None)


def with_hint(hint: Callable[[str], str]) -> Callable[[F], F]:
    """Return a decorator of methods; *hint* says what to write instead of an unknown parameter."""

    def decorate(method: F) -> F:
        shown = method.__qualname__.removesuffix(".__init__").rpartition(".")[2]

        @wraps(method)
        def hinting(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **kwargs)
            except TypeError as error:
                if not str(error).startswith(method.__qualname__):
                    raise
                if _MANY.search(str(error)):
                    names = [*declared_signature(method).parameters][1:]
                    ways = ", ".join(f"{name}=" for name in names) or "nothing"
                    msg = f"{shown}() is given too many values; it takes {ways}"
                    raise WrongTypeError(msg) from error
                found = _UNKNOWN.search(str(error))
                if found is None:
                    raise
                msg = f"{shown}() has no parameter {found[1]!r}; {hint(found[1])}"
                raise WrongTypeError(msg) from error

        return cast("F", hinting)

    return decorate


class MethodNotCalled(partial[Any]):
    """A method of an object; Python's own errors about a value of this class say what is wrong."""

    if not TYPE_CHECKING:  # for which the text of a class is not that of its objects
        __doc__ = property(lambda self: self.func.__doc__)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            return getattr(self.func, name)
        owner, method = self.args[0], self.func.__name__
        owner._used = True  # noqa: SLF001 - so that it does not warn that nothing was sent
        msg = f"{self.func.__qualname__} is a method: write .{method}().{name}"
        raise AttributeError(msg, name=name, obj=self)

    def __repr__(self) -> str:
        return f"<method {self.func.__qualname__}, called as .{self.func.__name__}()>"


class _Method:
    """A method whose value without parentheses is a `MethodNotCalled`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __get__(self, owner: object, kind: type | None = None) -> Callable[..., Any]:
        return self.function if owner is None else MethodNotCalled(self.function, owner)


def with_parentheses(method: F) -> F:
    """Return *method* so that the error names it if its parentheses are forgotten."""
    return cast("F", _Method(method))


def _message(kind: type[Any], name: str) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - imported for a message only

    from chatclient._internal.exports import (  # noqa: PLC0415 - it imports this module
        PUBLIC_PACKAGES,
        exports_of,
    )

    if kind.__name__ == "ChatClient":
        options = import_module("chatclient.chat").OptionValues.__annotations__.keys() - {"model"}
        method = f"default_options({name}=...)" if name in options else _OF_A_CLIENT.get(name)
        way = f"ChatClient.builder(model).{method}" if method else "ChatClient.create(model)"
        return f"a client is not made with {name!r}: write {way}"
    public = {each for package in PUBLIC_PACKAGES for each in exports_of(package)}
    known = dict(_parameters(kind))
    meant = [each for each in _NAMES.get(name, ()) if each in known]
    if not meant:
        meant = get_close_matches(name, known, n=1, cutoff=0.7)
    owners = [
        f"{parameter}={owner.__name__}({name}=...)"
        for parameter, annotation in known.items()
        for owner in (*_classes_in(annotation), *_own_options(kind, parameter))
        if owner.__name__ in public and name in dict(_parameters(owner))
    ]
    if meant and name in _NAMES:
        hint = f"it is {meant[0]!r}"
    elif isinstance(getattr(kind, name, None), property):
        hint = "it is made of the others"
    elif owners:
        hint = f"write {owners[0]}"
    elif meant:
        hint = f"it is {meant[0]!r}"
    elif name in _OF_A_REQUEST:
        hint = f"a request has it: client.prompt(...).{_OF_A_REQUEST[name]}"
    elif name in _OF_A_CLIENT and (kind.__name__.endswith("ChatModel") or "client" in known):
        hint = f"a client has it: ChatClient.builder(model).{_OF_A_CLIENT[name]}"
    else:
        hint = f"its parameters are {', '.join(known)}" if known else "it has none"
    return f"{kind.__name__}() has no parameter {name!r}; {hint}"


def _parameters(kind: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and annotations of the parameters; those of `Unpack[...]` one by one."""
    for each in [*declared_signature(kind.__init__).parameters.values()][1:]:
        if each.kind is each.VAR_KEYWORD:
            for unpacked in get_args(each.annotation):
                yield from dict.fromkeys(annotated_names(unpacked)).items()
        elif not each.name.startswith("_"):
            name = f"*{each.name}" if each.kind is each.VAR_POSITIONAL else each.name
            yield name, each.annotation


def _own_options(kind: type[Any], parameter: str) -> Iterator[type[Any]]:
    """Yield the class of the provider's own options if *parameter* takes the options of a model."""
    name = kind.__name__.replace("Model", "Options")
    if parameter == "options" and name in vars(sys.modules[kind.__module__]):
        yield vars(sys.modules[kind.__module__])[name]


def _classes_in(annotation: Any) -> Iterator[type[Any]]:
    """Yield the classes of this library in a union such as `ToolLimits | None`.

    Beside a collection, a class is the type of an item.
    """
    union = get_args(annotation)
    if any(map(get_origin, union)):
        return
    for each in (annotation, *union):
        if isinstance(each, type) and each.__module__.startswith("chatclient."):
            yield each
