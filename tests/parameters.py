"""Names of parametrised tests."""

import re
from typing import Any


def named(value: Any) -> str:
    """Name a value without its address: a test has the same name in each process."""
    return re.sub(r" at 0x\w+", "", getattr(value, "__qualname__", str(value)))[:60]
