"""Hints for parameters of advisors that are called otherwise in the reference."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

C = TypeVar("C", bound=type[Any])

# The reference's names, and the library's for the same; `*` stands for positional arguments.
_NAMES = {
    "advisor_order": "order",
    "tool_calling_manager": "manager",
    "tool_execution_eligibility_checker": "eligibility",
    "tool_execution_eligibility_predicate": "eligibility",
    "conversation_history_enabled": "conversation_history",
    "disable_internal_conversation_history": "conversation_history",
    "tool_searcher": "tool_index",
    "chat_memory": "memory",
    "chat_memory_repository": "memory",
    "session_service": "memory",
    "event_filter": "memory",
    "compaction_trigger": "memory",
    "compaction_strategy": "memory",
    "default_user_id": "memory",
    "prompt_template": "template",
    "system_prompt_template": "template",
    "system_text_advise": "template",
    "user_text_advise": "template",
    "re2_advise_template": "template",
    "default_top_k": "top_k",
    "chat_memory_retrieve_size": "top_k",
    "search_request": "top_k",
    "similarity_threshold": "threshold",
    "similarity_threshold_all": "threshold",
    "filter_expression": "where",
    "document_retriever": "*retrievers",
    "query_augmenter": "augmenter",
    "document_joiner": "joiner",
    "document_post_processors": "post_processors",
    "sensitive_words": "*forbidden",
    "output_type": "kind",
    "output_json_schema": "kind",
    "max_repeat_attempts": "max_attempts",
    "request_to_string": "request_to_text",
    "response_to_string": "response_to_text",
}


def hints_parameter_names(advisor: C) -> C:
    """Let the constructor of *advisor* name its own parameter for one of the reference.

    The error remains the `TypeError` of an unknown parameter.
    """
    construct: Callable[..., None] = advisor.__init__
    parameters = {
        str(each).partition(":")[0] if each.kind is each.VAR_POSITIONAL else each.name
        for each in inspect.signature(construct).parameters.values()
    }
    hints = {
        name: right
        for name, right in _NAMES.items()
        if name not in parameters and right in parameters
    }

    @wraps(construct)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in kwargs:
            if name in hints:
                msg = f"{type(self).__name__}() has no parameter {name!r}; it is {hints[name]!r}"
                raise TypeError(msg)
        construct(self, *args, **kwargs)

    advisor.__init__ = checked
    return advisor
