"""Errors of constructors that are given an unknown keyword argument: what to write instead.

`lazy_exports` applies `explain_parameters` to the classes of the public packages. Values that the
library itself makes for each message or event are left as they are, so that they cost no more.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from importlib import import_module
from types import FunctionType
from typing import Any, TypeVar, cast, get_args

from chatclient._internal.annotations import annotated_names, declared_signature
from chatclient.errors import UsageError, WrongTypeError

F = TypeVar("F", bound=Callable[..., Any])

_MANY = re.compile(r"takes (from \d+ to )?\d+ positional arguments? but \d+ (was|were) given")
_UNKNOWN = re.compile(r"got an unexpected keyword argument '(\w+)'")
_VALUES = {  # modules of objects that the library makes for each request, round or event
    *("chatclient.chain.chain", "chatclient.chat.events", "chatclient.chat.messages"),
    *("chatclient.chat.parts", "chatclient.chat.prompt", "chatclient.chat.response"),
    *("chatclient.chat.tool", "chatclient.chat.tool", "chatclient.chat.turn"),
    *("chatclient.client.call_response", "chatclient.client.request"),
    *("chatclient.client.stream_items", "chatclient.client.stream_response"),
    *("chatclient.memory.sessions.event", "chatclient.observability.operations"),
    *("chatclient.observability.trail", "chatclient.runtime.runtime"),
    *("chatclient.runtime.observation", "chatclient.tools.execution.result"),
}

# Names of other libraries, and those of this one for the same; `*` stands for positional arguments.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "advisor_order": ("order",),
    "api_base": ("base_url",),
    "chat_memory": ("memory",),
    "chat_memory_repository": ("memory", "repository"),
    "chat_memory_retrieve_size": ("top_k",),
    "chunk_overlap": ("overlap",),
    "chunk_size": ("size",),
    "compaction_strategy": ("memory",),
    "compaction_trigger": ("memory",),
    "conversation_history_enabled": ("conversation_history",),
    "content": ("text",),
    "page_content": ("text",),
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
    "k": ("top_k",),
    "key": ("api_key",),
    "max_iterations": ("max_rounds",),
    "max_repeat_attempts": ("max_attempts",),
    "max_steps": ("max_rounds",),
    "max_turns": ("max_rounds",),
    "model_id": ("model",),
    "model_name": ("model",),
    "name": ("model",),
    "num_retries": ("max_retries",),
    "output_json_schema": ("kind",),
    "output_type": ("kind",),
    "parameters": ("input_schema",),
    "prompt_template": ("template",),
    "query_augmenter": ("augmenter",),
    "re2_advise_template": ("template",),
    "request_timeout": ("timeout",),
    "request_to_string": ("request_to_text",),
    "response_to_string": ("response_to_text",),
    "retries": ("max_retries",),
    "search_request": ("top_k",),
    "sensitive_words": ("*forbidden",),
    "session_service": ("memory",),
    "similarity_threshold": ("threshold",),
    "similarity_threshold_all": ("threshold",),
    "system_prompt_template": ("template",),
    "system_text_advise": ("template",),
    "token": ("api_key",),
    "tool_calling_manager": ("manager",),
    "tool_execution_eligibility_checker": ("eligibility",),
    "tool_execution_eligibility_predicate": ("eligibility",),
    "tool_searcher": ("tool_index",),
    "url": ("base_url",),
    "usd": ("cost",),
    "user_text_advise": ("template",),
    "window": ("max_messages",),
    "window_size": ("max_messages",),
}

_MADE_BY: Mapping[str, str] = {
    "ChatClient": "write ChatClient.create(model), or ChatClient.builder(model)",
    "McpServer": "write McpServer.stdio(name, command, *args), or McpServer.http(name, url)",
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


def explain_parameters(kind: Any) -> None:
    """Let the constructor of the class *kind* suggest the right parameter or the right place.

    Other objects, and classes whose constructors are not of this library, are left unchanged.
    """
    construct = getattr(kind, "__init__", None) if isinstance(kind, type) else None
    module = getattr(construct, "__module__", "")
    if not isinstance(construct, FunctionType) or not module.startswith("chatclient."):
        return
    if (
        module in _VALUES
        or hasattr(construct, "__wrapped__")
        or getattr(kind, "_is_protocol", False)
    ):
        return

    kind.__init__ = explained(construct)


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
            if kind.__name__ in _MADE_BY and "missing" in str(error):
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
    if owners:
        hint = f"write {owners[0]}"
    elif meant:
        hint = f"it is {meant[0]!r}"
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
    """Yield the classes of this library in a union such as `ToolLimits | None`."""
    for each in (annotation, *get_args(annotation)):
        if isinstance(each, type) and each.__module__.startswith("chatclient."):
            yield each
