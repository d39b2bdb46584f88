"""Reads the descriptions of a function and its parameters from a docstring.

Understands the Google, NumPy and reStructuredText styles, mixed or not, and forgives whatever else
it meets: a docstring is prose, so nothing in here raises.
"""

import inspect
import re
from collections.abc import Mapping
from typing import NamedTuple

from chatclient._internal.frozen import EMPTY, frozen


class Docstring(NamedTuple):
    """The parts of a docstring that a model should see.

    Attributes:
        summary: Everything outside of sections, paragraphs kept; what the function is for.
        parameters: The description of each parameter, each on one line.
    """

    summary: str = ""
    parameters: Mapping[str, str] = EMPTY


_PARAMETER_TITLES = frozenset(
    {
        *("args", "arguments", "params", "parameters", "attributes", "fields"),
        *("keyword args", "keyword arguments", "other parameters"),
    }
)
_TITLES = _PARAMETER_TITLES | {
    *("return", "returns", "yield", "yields", "receives", "raise", "raises", "except"),
    *("exceptions", "warns", "example", "examples"),
    *("see also", "references", "todo", "methods"),
}
# Sections that are part of the description: they explain when and how to call the tool.
_DESCRIPTION_TITLES = frozenset(
    {*("note", "notes", "warning", "warnings", "caution", "important", "tip", "hint", "usage")}
)

# `name`, `name (type)`, `name : type`, `*args`, `x, y`; then their description. A list may
# have them as its items, and they may be marked as code.
_NAMES = r"\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*"
_MARKED = rf"(?:[-*+•]\s+)?`{{0,2}}({_NAMES})`{{0,2}}"
_TYPE = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_GOOGLE_ITEM = re.compile(rf"{_MARKED}\s*(?:{_TYPE})?\s*:(?:\s+|$)(.*)")
_NUMPY_ITEM = re.compile(rf"{_MARKED}\s*(?::.*)?$")
_REST_FIELD = re.compile(r":(\w+)(?:\s+([^:]*?))?\s*:(?:\s+|$)(.*)")
_REST_PARAMETER = frozenset({"param", "parameter", "arg", "argument", "key", "keyword"})
_UNDERLINE = re.compile(r"\s*(-{3,}|={3,})\s*$")


def parse_docstring(doc: str | None) -> Docstring:
    """Return the descriptions in *doc*, as far as its format is known."""
    if not doc or not doc.strip():
        return Docstring()
    reader = _Reader(inspect.cleandoc(doc).splitlines())
    reader.read()
    summary = re.sub(r"\n{3,}", "\n\n", "\n".join(line.rstrip() for line in reader.summary))
    parameters = {
        name: " ".join(" ".join(lines).split()) for name, lines in reader.parameters.items()
    }
    return Docstring(summary.strip(), frozen({k: v for k, v in parameters.items() if v}))


class _Reader:
    """Reads line after line, knowing which section it is in."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.summary: list[str] = []
        self.parameters: dict[str, list[str]] = {}

    def read(self) -> None:
        line = 0
        while line < len(self.lines):
            line = self._numpy(line) or self._google(line) or self._rest(line) or self._text(line)

    def _text(self, at: int) -> int:
        self.summary.append(self.lines[at])
        return at + 1

    def _numpy(self, start: int) -> int:
        """Read an underlined section; return the line after it, or 0 if there is none here."""
        if not self._is_underlined(start):
            return 0
        end = start + 2
        while end < len(self.lines) and not self._is_underlined(end):
            end += 1
        title = _title(self.lines[start])
        if title in _PARAMETER_TITLES:
            self._items(self.lines[start + 2 : end], _NUMPY_ITEM)
        elif title in _DESCRIPTION_TITLES:
            self.summary.extend((f"{self.lines[start].strip()}:", *self.lines[start + 2 : end]))
        return end

    def _is_underlined(self, at: int) -> bool:
        return (
            at + 1 < len(self.lines)
            and _title(self.lines[at]) in _TITLES | _DESCRIPTION_TITLES
            and _UNDERLINE.match(self.lines[at + 1]) is not None
        )

    def _google(self, start: int) -> int:
        """Read a `Title:` with an indented block; return the line after it, or 0."""
        title = self.lines[start].rstrip()
        section = title.endswith(":") and _title(title[:-1])
        if not section or section not in _TITLES:
            return 0
        end = self._block_end(start + 1, _indent(title))
        if start == 0 and end == 1:  # nothing but this section: cleandoc took its indentation away
            end = len(self.lines)
        if section in _PARAMETER_TITLES:
            self._items(self.lines[start + 1 : end], _GOOGLE_ITEM)
        return end

    def _rest(self, at: int) -> int:
        """Read a `:field name:` with its continuation; return the line after it, or 0."""
        line = self.lines[at]
        field = _REST_FIELD.match(line.strip())
        if field is None:
            return 0
        kind, subject, text = field.groups()
        end = self._block_end(at + 1, _indent(line), blank_ends=True)
        if kind.lower() in _REST_PARAMETER and subject:
            name = subject.split()[-1].lstrip("*\\")
            self.parameters[name] = [text, *self.lines[at + 1 : end]]
        return end

    def _block_end(self, index: int, indent: int, *, blank_ends: bool = False) -> int:
        while index < len(self.lines):
            line = self.lines[index]
            if line.strip() and _indent(line) <= indent:
                break
            if blank_ends and not line.strip():
                break
            index += 1
        return index

    def _items(self, lines: list[str], pattern: re.Pattern[str]) -> None:
        """Read the parameters of a section; deeper indented lines continue the previous one."""
        indent = min((_indent(line) for line in lines if line.strip()), default=0)
        names: list[str] = []
        for line in lines:
            item = pattern.match(line.strip()) if _indent(line) == indent else None
            if item is not None:
                names = [name.strip().lstrip("*") for name in item[1].split(",")]
                said = [item[2]] if pattern is _GOOGLE_ITEM else []
                self.parameters.update({name: list(said) for name in names})
            else:
                for name in names:
                    self.parameters[name].append(line)


def _title(line: str) -> str:
    return " ".join(line.lower().split())


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
