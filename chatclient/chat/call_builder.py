"""Joins the fragments of a tool call."""

import re
from itertools import pairwise
from typing import Any

from chatclient._internal.frozen import frozen
from chatclient._internal.json import loads
from chatclient.chat.messages import ToolCall, ToolCallChunk
from chatclient.chat.parts import generate_call_id

# How well a fragment matches a call, in ascending order.
_BY_INDEX, _UNNAMED, _BY_ID, _BY_ID_AND_INDEX = 1, 2, 3, 4
_BRACKETS = re.compile(r'["\\{}\[\]]')


class _Arguments:
    """The fragments of a call's arguments; each is scanned once, in linear time overall."""

    __slots__ = ("_closed", "_depth", "_escaped", "_in_string", "_object", "_scanned", "fragments")

    def __init__(self) -> None:
        self.fragments: list[str] = []
        self._scanned = 0  # number of fragments
        self._depth = 0
        self._in_string = self._escaped = False
        self._closed = False  # whether a complete value has ended
        self._object: dict[str, Any] | None = None

    def add(self, fragment: str) -> None:
        if fragment:
            self.fragments.append(fragment)

    def text(self) -> str:
        return "".join(self.fragments)

    def complete_object(self) -> dict[str, Any] | None:
        """Return the JSON object that the fragments form, or None."""
        has_content = False
        while self._scanned < len(self.fragments):
            has_content = has_content or not self.fragments[self._scanned].isspace()
            self._scan_brackets(self.fragments[self._scanned])
            self._scanned += 1
        if has_content and self._closed:  # text after a complete value
            self._object = None
        elif has_content and not self._depth and not self._in_string:
            self._closed = True
            self._object = _object_in(self.text())
        return self._object

    def _scan_brackets(self, fragment: str) -> None:
        skipped = 0 if self._escaped else -1
        self._escaped = False
        for match in _BRACKETS.finditer(fragment):
            at, sign = match.start(), match.group()
            if at == skipped:
                continue
            if sign == '"':
                self._in_string = not self._in_string
            elif self._in_string:
                if sign == "\\":
                    skipped = at + 1
            elif sign in "{[":
                self._depth += 1
            elif sign in "}]":
                self._depth -= 1
        self._escaped = skipped == len(fragment)


class CallBuilder:
    """Collects the fragments of one tool call."""

    __slots__ = ("_fixed_id", "_started", "arguments", "id", "index", "metadata", "name")

    def __init__(self, index: int | None) -> None:
        self._fixed_id = ""
        self._started = False
        self.index = index
        self.id = ""
        self.name = ""
        self.arguments = _Arguments()
        self.metadata: dict[str, Any] = {}

    def match_score(self, chunk: ToolCallChunk) -> int:
        """Return how well *chunk* matches this call; 0 if it is part of another one."""
        if chunk.name and self.name and chunk.name != self.name:
            return 0  # some servers send the same index and id, or none, for all calls
        if chunk.name and not chunk.id and self._is_followed_by(chunk.arguments):
            return 0  # a second call of the same tool
        numbered = chunk.index is not None and self.index is not None
        other_index = numbered and chunk.index != self.index
        if chunk.id and chunk.id == self.id:
            if not other_index:
                return _BY_ID_AND_INDEX
            return 0 if self._is_followed_by(chunk.arguments) else _BY_ID
        if other_index or (chunk.id and not numbered):
            return 0
        if chunk.id and self.id:  # some servers send a new id with each fragment
            continues = not chunk.name and not self._is_followed_by(chunk.arguments)
            return _BY_INDEX if continues else 0
        return _UNNAMED

    def _is_followed_by(self, arguments: str) -> bool:
        """Return whether the call is complete and *arguments* begin another object."""
        if not arguments.lstrip().startswith("{"):
            return False
        return self.arguments.complete_object() is not None

    def _is_repeated_by(self, arguments: str) -> bool:
        """Return whether *arguments* repeat the complete arguments, as some servers do."""
        followed = self._is_followed_by(arguments)
        return followed and _object_in(arguments) == self.arguments.complete_object()

    def _arguments_text(self) -> str:
        text = self.arguments.text()
        fragments = [each for each in self.arguments.fragments if each.strip()]
        # Some servers repeat all previous text in each fragment. Checked as JSON, because repeated
        # text may also be the input of a custom tool.
        growing = len(fragments) > 1 and all(b.startswith(a) for a, b in pairwise(fragments))
        if growing and _object_in(text) is None and _object_in(fragments[-1]) is not None:
            return fragments[-1]
        return text

    def add(self, chunk: ToolCallChunk) -> ToolCallChunk | None:
        """Add a fragment, and return its new content; None until the name is known."""
        # Id and name are never split, but some servers repeat them in every chunk.
        self.id = self.id or chunk.id
        self.name = self.name or chunk.name
        arguments = "" if self._is_repeated_by(chunk.arguments) else chunk.arguments
        self.arguments.add(arguments)
        if chunk.metadata:
            self.metadata.update(chunk.metadata)
        if not self.name:
            return None
        if not self._started:
            self._started = True
            arguments = self.arguments.text()
            return ToolCallChunk(self.index, self._call_id(), self.name, arguments)
        return ToolCallChunk(self.index, self._call_id(), arguments=arguments)

    def _call_id(self) -> str:
        """Return the id of the call, generated if none was received; it does not change later."""
        self._fixed_id = self._fixed_id or self.id or generate_call_id()
        return self._fixed_id

    def build(self) -> ToolCall:
        """Return the call with the arguments received so far.

        A call without arguments has `{}`, as in answers that are not streamed. The input of a
        custom tool is free text, which may be empty.
        """
        arguments = self._arguments_text()
        if not arguments and "type" not in self.metadata:
            arguments = "{}"
        return ToolCall(self._call_id(), self.name, arguments, frozen(self.metadata))


def _object_in(text: str) -> dict[str, Any] | None:
    try:
        value = loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
