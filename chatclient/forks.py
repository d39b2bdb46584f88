"""What has to happen in a forked child, which has copies of what the parent goes on using."""

import os
from collections.abc import Callable


def in_forked_children(function: Callable[[], None]) -> None:
    """Have *function* called in every child that is forked from now on; Windows forks none."""
    if hasattr(os, "register_at_fork"):  # pragma: no branch
        os.register_at_fork(after_in_child=function)
