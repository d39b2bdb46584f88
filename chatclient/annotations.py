"""What functions and classes declare, also where names in it are there for type checkers only.

Until Python 3.13 an annotation with such names has to be a text, which nobody reads unasked. Since
3.14 all annotations are evaluated when somebody looks at them, and that is where names are missing.
"""

import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any

# Names that are missing become a `ForwardRef`, which can be resolved, or not, as a text can.
_FORMAT: Mapping[str, Any] = (
    {"format": import_module("annotationlib").Format.FORWARDREF}
    if sys.version_info >= (3, 14)
    else {}
)


def declared_signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return what *function* takes, as `inspect.signature` does, whatever its annotations name.

    Raises:
        TypeError: It cannot be called.
        ValueError: It is written in C and does not say what it takes.
    """
    return inspect.signature(function, **{f"annotation_{key}": _FORMAT[key] for key in _FORMAT})


def annotated_names(kind: type[Any]) -> Collection[str]:
    """Return the names that *kind* itself annotates, not those that its base classes do."""
    return inspect.get_annotations(kind, **_FORMAT).keys()
