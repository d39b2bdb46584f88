"""Lazy exports of the public packages: importing a package loads none of its modules."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from chatclient._internal.public_names import PUBLIC_NAMES


def lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a public package (PEP 562).

    `__getattr__` imports the module of a name at its first use. For a name that another public
    package exports, it raises an `ImportError` that names that package.
    """
    names = PUBLIC_NAMES[package]

    def get_attribute(name: str) -> Any:
        if name == "__all__":
            return sorted(names)
        if name in names:
            value = getattr(import_module(names[name]), name)
            setattr(sys.modules[package], name, value)
            return value
        if f"{package}.{name}" in PUBLIC_NAMES:
            return import_module(f"{package}.{name}")
        for other, exported in PUBLIC_NAMES.items():
            if name in exported:
                msg = f"cannot import {name!r} from {package!r}: use `from {other} import {name}`"
                raise ImportError(msg, name=package)
        msg = f"module {package!r} has no attribute {name!r}"
        raise AttributeError(msg, name=name, obj=sys.modules[package])

    def list_attributes() -> list[str]:
        return sorted({*vars(sys.modules[package]), *names})

    return get_attribute, list_attributes
