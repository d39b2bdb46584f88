"""Idempotency keys of tool calls, and the counts of equal calls that they depend on."""

import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from chatclient._internal.json import loads_comparable
from chatclient._internal.json_repair import repair_json
from chatclient.chat.messages import ToolCall
from chatclient.chat.tool import CONVERSATION_ID, USER_ID

_SORTING = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str)
# Two owners never share a key, even if an application gives their turns the same key.
_OWNERS = (CONVERSATION_ID, USER_ID, "tenant_id", "tenant", "user_id", "user")

CanonicalCall = tuple[str, str]
"""Name and arguments of a call, with the arguments as canonical JSON."""


class IdempotencyKeys:
    """Counts the equal calls of one turn and derives their idempotency keys.

    Args:
        identity: Identifies the turn; None for a random value.
    """

    def __init__(self, identity: str | None = None) -> None:
        self._identity = identity
        self._seed: str | None = None
        self._counts: Counter[CanonicalCall] = Counter()
        self._canonical: dict[tuple[str, str], CanonicalCall] = {}

    def canonical(self, call: ToolCall) -> CanonicalCall:
        """Return *call* in the form in which equal calls are equal, however they are formatted."""
        written = call.name, call.arguments
        canonical = self._canonical.get(written)
        if canonical is None:
            canonical = self._canonical[written] = call.name, _canonical_json(call.arguments)
        return canonical

    def count(self, calls: Iterable[ToolCall]) -> None:
        """Count *calls* that the turn made before."""
        self._counts.update(map(self.canonical, calls))

    def call_count(self, call: ToolCall) -> int:
        """Return how many calls equal to *call* were counted."""
        return self._counts[self.canonical(call)]

    def next_ordinal(self, call: ToolCall) -> int:
        """Count *call* and return its position among the equal calls of the turn, from 1."""
        canonical = self.canonical(call)
        self._counts[canonical] = ordinal = self._counts.get(canonical, 0) + 1
        return ordinal

    def key(self, call: ToolCall, ordinal: int, context: Mapping[str, Any]) -> str:
        """Return the idempotency key of a call.

        It depends on the turn, its owner, the tool, the arguments and *ordinal*. It does not depend
        on the id of the call, because a model generates a new one when a turn is repeated.

        Args:
            call: The call.
            ordinal: Its position among the equal calls of the turn.
            context: The tool context, which names the owner of the turn.
        """
        return _digest(self.seed(context), *self.canonical(call), str(ordinal))[:32]

    def seed(self, context: Mapping[str, Any]) -> str:
        """Return the part that all keys of the turn share; it is stored in a pending turn."""
        if self._seed is None:
            identity = self._identity or secrets.token_hex(16)
            self._seed = _digest(*(str(context.get(key, "")) for key in _OWNERS), identity)
        return self._seed

    def restore_seed(self, seed: str | None) -> None:
        """Use the *seed* of a pending turn."""
        self._seed = seed


def _canonical_json(arguments: str) -> str:
    """Return *arguments* as JSON with sorted keys and no spaces; unreadable ones unchanged."""
    try:
        value = loads_comparable(arguments.strip() or "{}")
    except ValueError:
        repaired = repair_json(arguments)
        if repaired is None:
            return arguments
        value = loads_comparable(repaired)
    return _SORTING.encode(value)


def _digest(*parts: str) -> str:
    # Encoded as JSON, because no separator in a part can then make two lists equal.
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
