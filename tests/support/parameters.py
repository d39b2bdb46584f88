"""Names of parametrised tests."""

import re
from typing import Any


def named(value: Any) -> str:
    """Return a name without an address, which is equal in all processes."""
    return re.sub(r" at 0x\w+", "", getattr(value, "__qualname__", str(value)))[:60]
