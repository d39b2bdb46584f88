"""`UntrustedArguments`: refuses calls whose arguments come from texts of others."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cached_property
from typing import Any

from pydantic_core import to_jsonable_python

from chatclient._internal.checks import check_callable, names
from chatclient._internal.json import dumps
from chatclient._internal.text import readable_text
from chatclient.chat.origins import PromptPart
from chatclient.chat.tool import ToolResult
from chatclient.errors import ToolDeniedError
from chatclient.tools.execution.approval import NextTool, ToolInvocation, is_approved

_MOST_WORDS = 4  # what has more is a text of its own, of which parts are checked
_SHORTEST = 2  # what is shorter occurs everywhere
_TARGETS = re.compile(
    r"""[a-z][a-z0-9+.-]{0,20}://[^\s<>"')\]]+ | [^\s@<>"'(),;:]{1,64}@[^\s@<>"'(),;:]{1,254}\w
    | \b[A-Z]{2}\d{2}(?:[ ]?[A-Z0-9]{4}){2,7}(?:[ ]?[A-Z0-9]{1,3})?\b | \b\d(?:[ -]?\d){5,}\b""",
    re.VERBOSE | re.IGNORECASE,
)
_NUMBER = re.compile(r"\d(?:[\d.,'\u2019]*\d)?")
_GAPS = re.compile(r"[\s_-]+")
_COMPACT_LENGTH = 8  # shorter values are compared as words, because gaps separate words


class _Text:
    """A text in which values are looked for."""

    def __init__(self, text: str) -> None:
        self._given = text

    @cached_property
    def _text(self) -> str:
        return readable_text(self._given).casefold()

    @cached_property
    def _compact(self) -> str:
        return _GAPS.sub("", self._text)

    @cached_property
    def _numbers(self) -> frozenset[Decimal]:
        return frozenset(
            number for found in _NUMBER.findall(self._text) for number in _readings(found)
        )

    def contains(self, value: str | Decimal) -> bool:
        """Return whether *value* occurs in the text, between other words."""
        if isinstance(value, Decimal):
            return abs(value) in self._numbers
        if _NUMBER.fullmatch(value) and not self._numbers.isdisjoint(_readings(value)):
            return True
        sought = readable_text(value).partition("\n")[0].casefold().strip()
        compact = _GAPS.sub("", sought)
        if len(compact) >= _COMPACT_LENGTH:
            return compact in self._compact
        return re.search(rf"(?<!\w){re.escape(sought)}(?!\w)", self._text) is not None


def _readings(number: str) -> Iterator[Decimal]:
    """Yield the values of *number* with a decimal point and with a decimal comma."""
    bare = number.replace("'", "").replace("\u2019", "")
    for group, point in ((",", "."), (".", ",")):
        try:
            yield Decimal(bare.replace(group, "").replace(point, "."))
        except InvalidOperation:  # several points, such as in a date
            continue


def _values(argument: Any, path: str) -> Iterator[tuple[str, str | Decimal]]:
    """Yield the values in *argument* that may be a target, each with its path."""
    match argument:
        case bool() | None:
            return
        case int() | float():
            if len(str(abs(argument))) >= _SHORTEST:
                yield path, Decimal(str(abs(argument)))
        case str():
            text = argument.strip()
            if len(text) >= _SHORTEST and len(text.split(None, _MOST_WORDS)) <= _MOST_WORDS:
                yield path, text
            for target in _TARGETS.findall(text):
                yield path, target
        case Mapping():
            for key, each in argument.items():
                yield from _values(each, f"{path}.{key}" if path else str(key))
        case list() | tuple():
            for at, each in enumerate(argument):
                yield from _values(each, f"{path}[{at}]")
        case _:
            return


def _writes(invocation: ToolInvocation) -> bool:
    return invocation.metadata.effect != "read"


@dataclass(frozen=True)
class UntrustedArguments:
    """An interceptor that refuses calls with values that come from texts of others.

    A value of an argument is untrusted if it occurs in the result of a tool or in a retrieved
    document, and neither in what the user or the application has said nor among the values that the
    schema of the tool names. Of long texts, the addresses, account numbers and other long numbers
    in them are checked. Encodings, spaces and letter case make no difference. A call that was
    approved is not refused.

    To ask for approval instead: `ToolApproval(needed=lambda call: bool(origin.found_in(call)))`.

    Attributes:
        trusted: The names of tools whose results count as what the application says.
        checked: Returns whether a call is checked; default: unless the effect of the tool is
            `"read"`.

    Raises:
        UsageError: *checked* is no function.
    """

    trusted: Collection[str] = ()
    checked: Callable[[ToolInvocation], bool] = _writes

    def __post_init__(self) -> None:
        object.__setattr__(self, "trusted", names(self.trusted))
        check_callable("checked", self.checked, takes=("invocation",))

    async def __call__(self, invocation: ToolInvocation, call_next: NextTool, /) -> ToolResult:
        """Return the result of the tool.

        Raises:
            ToolArgumentError: It cannot be run with its arguments.
            ToolDeniedError: An argument is untrusted.
        """
        if is_approved(invocation.context) or not self.checked(invocation):
            return await call_next(invocation)
        found = self.found_in(invocation)
        if found:
            sources = ", ".join(f"{path!r} from {_named(part)}" for path, part in found.items())
            msg = (
                f"Not run: the user has not said the value of {sources}. Tell the user what you"
                " were about to do, and ask for confirmation of the value."
            )
            raise ToolDeniedError(msg, tool_name=invocation.definition.name)
        return await call_next(invocation)

    def found_in(self, invocation: ToolInvocation) -> Mapping[str, PromptPart]:
        """Return the untrusted arguments: by path, the part of the prompt that a value is from.

        Raises:
            ToolArgumentError: The tool cannot be run with its arguments.
        """
        arguments = to_jsonable_python(dict(invocation.arguments()), fallback=str)
        # Each text is prepared once in a turn.
        turn, texts = invocation.turn, dict[str, _Text]()
        if turn is not None:
            texts = turn.state.setdefault(self, texts)
        trusted, others = list[_Text](), list[tuple[PromptPart, _Text]]()
        for part in invocation.parts():
            if part.origin in ("user", "system") or self._is_of_trusted_tool(part):
                trusted.append(texts.setdefault(part.text, _Text(part.text)))
            elif part.origin in ("tool", "document"):
                others.append((part, texts.setdefault(part.text, _Text(part.text))))
        schema = dumps(invocation.definition.input_schema).decode()
        found: dict[str, PromptPart] = {}
        for path, value in _values(arguments, ""):
            if path in found or any(text.contains(value) for text in trusted):
                continue
            if isinstance(value, str) and dumps(value).decode() in schema:
                continue
            source = next((part for part, text in others if text.contains(value)), None)
            if source is not None:
                found[path] = source
        return found

    def _is_of_trusted_tool(self, part: PromptPart) -> bool:
        return part.origin == "tool" and part.name in self.trusted


def _named(part: PromptPart) -> str:
    return f"a result of {part.name!r}" if part.origin == "tool" else "a document"
