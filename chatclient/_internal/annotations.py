"""Annotations at run time, also with names that are imported under `TYPE_CHECKING` only.

Until Python 3.13, annotations with such names are strings. Since 3.14, annotations are evaluated on
access, which would raise a `NameError`.
"""

import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any

# Missing names become a `ForwardRef`, which is handled like an annotation that is a string.
_FORMAT: Mapping[str, Any] = (
    {"format": import_module("annotationlib").Format.FORWARDREF}
    if sys.version_info >= (3, 14)
    else {}
)


def declared_signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of *function*, like `inspect.signature`, without resolving names.

    Raises:
        TypeError: It is not callable.
        ValueError: It is written in C and has no signature.
    """
    return inspect.signature(function, **{f"annotation_{key}": _FORMAT[key] for key in _FORMAT})


def annotated_names(kind: type[Any]) -> Collection[str]:
    """Return the names that *kind* annotates, without those of its base classes."""
    return inspect.get_annotations(kind, **_FORMAT).keys()
