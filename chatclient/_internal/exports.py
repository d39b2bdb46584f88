"""Lazy exports of the public packages, and hints for names that they do not have.

A package lists its names once, as imports for type checkers:

```python
if TYPE_CHECKING:
    from module import Name as Name
else:
    __getattr__, __dir__ = lazy_exports(__name__)
```

The imports do not run, but the compiler keeps them, and `lazy_exports` reads them from the code of
its caller. `__getattr__` imports the module of a name at the first use of the name (PEP 562).
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import CodeType
from typing import Any

from chatclient._internal.extras import needed_by
from chatclient._internal.parameters import explain_parameters
from chatclient.errors import MissingExtraError

PUBLIC_PACKAGES = (
    "chatclient",
    "chatclient.chat",
    "chatclient.advisors",
    "chatclient.tools",
    "chatclient.tools.search",
    "chatclient.providers",
    "chatclient.memory",
    "chatclient.retrieval",
    "chatclient.structured",
    "chatclient.decisions",
    "chatclient.services",
    "chatclient.settings",
    "chatclient.durable",
    "chatclient.mcp",
    "chatclient.web",
    "chatclient.bridges",
    "chatclient.observability",
    "chatclient.testing",
    "chatclient.extend",
    "chatclient.errors",
)
"""The packages whose names are public; of several with the same name, the first is named."""

_PREFIX = "chatclient."
_NOT_EXPORTED = (__name__, "chatclient._internal.version")  # which the packages themselves import
_exports: dict[str, Mapping[str, str]] = {}


def lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a public package; see the module's docstring.

    A name whose extra is not installed is a missing attribute (`hasattr` is False), and importing
    it is a `MissingExtraError`. `__all__` has the names that are present.
    """
    module = sys.modules[package]
    names = _exports[package] = _imports_in(sys._getframe(1).f_code)  # noqa: SLF001 - the caller
    below = [each.removeprefix(f"{package}.") for each in PUBLIC_PACKAGES if each != package]
    below = [each for each in below if "." not in each and each != "chatclient"]

    def get_attribute(name: str) -> Any:
        if name == "__all__":
            return [each for each in sorted(names) if hasattr(module, each)]
        if f"{package}.{name}" in PUBLIC_PACKAGES:
            return import_module(f"{package}.{name}")
        try:
            value = _load(package, name)
        except (AttributeError, MissingExtraError) as error:
            raise AttributeError(str(error), name=name, obj=module) from error
        setattr(module, name, value)
        return value

    def list_names() -> list[str]:
        return sorted((*names, *below))

    return get_attribute, list_names


def exports_of(package: str) -> Mapping[str, str]:
    """Return the defining modules of the public names of *package*."""
    try:
        module = import_module(package)
    except ModuleNotFoundError:  # the library works without its edges
        return {}
    return _exports.get(package) or dict.fromkeys(getattr(module, "__all__", ()), package)


def _imports_in(code: CodeType) -> dict[str, str]:
    """Return the names that *code*, of a module, imports from modules of the library."""
    modules = [name for name in code.co_names if name == "typing" or name.startswith(_PREFIX)]
    names = [each for each in code.co_consts if isinstance(each, tuple)]
    return {
        name: module
        for module, several in zip(modules, names, strict=True)
        for name in several
        if module.startswith(_PREFIX) and module not in _NOT_EXPORTED
    }


def _load(package: str, name: str) -> Any:
    """Return the public object *name*.

    Raises:
        MissingExtraError: Its extra is not installed.
        AttributeError: There is none; the message may name another.
    """
    place = _exports[package].get(name)
    if place is None:
        hint = None if name.startswith("_") else _hint(package, name)
        msg = f"module {package!r} has no attribute {name!r}"
        raise AttributeError(msg if hint is None else f"{msg}; {hint}")
    with needed_by(name):
        value = getattr(import_module(place), name)
    if package != "chatclient.extend":  # whose classes are made often, by code of authors
        explain_parameters(value)
    add_short_repr(value)
    return value


class _MissingNames:
    """Raises errors with hints for names that cannot be imported from public packages.

    Python asks finders for a submodule if a package has no attribute of that name.
    """

    @staticmethod
    def find_spec(fullname: str, *_place: object) -> ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        if package.split(".")[0] != "chatclient" or name.startswith("_"):
            return None
        if package not in _exports and fullname not in PUBLIC_PACKAGES:  # a name is looked for
            _refuse(package, name, _hint(package, name))
            return None
        if fullname in PUBLIC_PACKAGES:
            return None
        if name in _exports[package]:
            _load(package, name)  # raises the error of a missing extra
            hint: str | None = f"it is no module; use `from {package} import {name}`"
        else:
            hint = _hint(package, name)
        _refuse(package, name, hint)
        return None


def _refuse(package: str, name: str, hint: str | None) -> None:
    """Raise the error for a *name* that *package* does not have, unless it may be a module.

    Raises:
        ImportError: With the hint, or for the name of a class with the way to all names.
    """
    if hint is None and name[:1].isupper():
        hint = f"dir({package}) lists its names"
    if hint is not None:
        # Not a `ModuleNotFoundError`, which `from package import name` would replace.
        raise ImportError(
            f"cannot import {name!r} from {package!r}; {hint}", name=f"{package}.{name}"
        )


sys.meta_path.append(_MissingNames)


def _hint(package: str, name: str) -> str | None:
    """Return what to write instead of a *name* that *package* does not have, or None."""
    from difflib import get_close_matches  # noqa: PLC0415 - seldom used

    from chatclient._internal.foreign_names import REPLACEMENTS  # noqa: PLC0415 - as above

    places: dict[str, str] = {}
    for each in (package, *PUBLIC_PACKAGES):
        for known in exports_of(each):
            places.setdefault(known, f"`from {each} import {known}`")
        if each != "chatclient":
            places.setdefault(each.rpartition(".")[2], f"`{each}`")
    if name in places:
        return f"use {places[name]}"
    if f"{_PREFIX}{name}s" in PUBLIC_PACKAGES:
        return f"did you mean `{_PREFIX}{name}s`?"
    if name in REPLACEMENTS:
        return f"use {REPLACEMENTS[name]}"
    folded: dict[str, str] = {}
    for known in places:  # of names that differ in their case only, the first
        folded.setdefault(known.casefold().replace("_", ""), known)
    close = get_close_matches(name.casefold().replace("_", ""), folded, n=1, cutoff=0.75)
    return f"did you mean {places[folded[close[0]]]}?" if close else None


_LONGEST = 100  # characters
_PLAIN = (bool, int, float)


def add_short_repr(kind: Any) -> None:
    """Give *kind* a short text if it is a class without one; protocols are left as they are."""
    if not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return
    if vars(kind).get("__repr__", kind.__repr__) is object.__repr__:
        changed: Any = kind
        changed.__repr__ = _short


def _short(self: object) -> str:
    """Return the name of the class, and those public attributes that contain no secrets.

    These are numbers, functions and objects of this library. Texts are left out, apart from names:
    they may be keys, addresses or what users say.
    """
    shown = " ".join(_shown(self))
    if len(shown) > _LONGEST:
        shown = f"{shown[:_LONGEST]}..."
    return f"<{type(self).__name__}{' ' if shown else ''}{shown}>"


def _shown(owner: object) -> Iterator[str]:
    names = getattr(owner, "__dict__", None) or {
        name: None for kind in type(owner).__mro__ for name in getattr(kind, "__slots__", ())
    }
    for name in list(names):
        value = getattr(owner, name, None)
        if not name.startswith("_") and name != "order" and (text := _text(name, value)):
            yield f"{name}={text}"


def _text(name: str, value: Any) -> str:
    if isinstance(value, _PLAIN) or (name == "name" and isinstance(value, str)):
        return repr(value)
    if isinstance(value, Mapping):
        plain = all(isinstance(each, _PLAIN) for each in value.values())
        return repr(dict(value)) if value and plain else ""
    if isinstance(value, tuple | list):
        texts = [_text(name, each) for each in value[:3]]
        return f"[{', '.join(texts)}]" if texts and all(texts) else ""
    if type(value).__module__.startswith("chatclient."):
        return type(value).__name__
    return value.__name__ if callable(value) and hasattr(value, "__name__") else ""
