"""Prompt templates: text with placeholders, and what fills them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from chatclient.checks import check_kind
from chatclient.errors import TemplateError
from chatclient.messages import SystemMessage, UserMessage
from chatclient.values import EMPTY, freeze_fields, merged


class TemplateRenderer(Protocol):
    """Fills a template; any function of this shape is one."""

    def __call__(self, template: str, variables: Mapping[str, Any], /) -> str:
        """Return *template* with *variables* in their places.

        Raises:
            TemplateError: The template cannot be rendered with them.
        """
        ...


@dataclass(frozen=True)
class PlaceholderRenderer:
    r"""Replaces `{name}`, and leaves every other brace alone, so JSON may stand in a template.

    `{user.name}` reads a key of a mapping or a public attribute of an object. A backslash keeps a
    placeholder as it is: `\{name}` becomes `{name}`. None becomes nothing, lists are joined with
    commas, everything else is `str(value)`. What is filled in is never rendered again.

    Attributes:
        start: What opens a placeholder.
        end: What closes it.
    """

    start: str = "{"
    end: str = "}"
    _pattern: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.start or not self.end:
            msg = "a placeholder needs a start and an end delimiter"
            raise TemplateError(msg)
        name = r"[^\W\d]\w*(?:\.[^\W\d_]\w*)*"
        pattern = rf"(\\?){re.escape(self.start)}\s*({name})\s*{re.escape(self.end)}"
        object.__setattr__(self, "_pattern", re.compile(pattern))

    def __call__(self, template: str, variables: Mapping[str, Any], /) -> str:
        """Return *template* with *variables* in their places.

        Raises:
            TemplateError: Some are missing; the error lists all of them.
        """
        missing: set[str] = set()

        def fill(match: re.Match[str]) -> str:
            escape, path = match.groups()
            if escape:
                return match.group()[1:]
            try:
                value = _look_up(path, variables)
            except (LookupError, AttributeError):
                missing.add(path)
                return ""
            return _shown(value)

        rendered = self._pattern.sub(fill, template)
        if missing:
            names = sorted(missing)
            msg = (
                f"the template needs values for {', '.join(names)}; pass them with params= beside"
                " a text, and by name to render()"
            )
            raise TemplateError(msg, missing=names)
        return rendered


def _look_up(path: str, variables: Mapping[str, Any]) -> Any:
    first, *rest = path.split(".")
    value = variables[first]
    for name in rest:
        value = value[name] if isinstance(value, Mapping) else getattr(value, name)
    return value


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(_shown(item) for item in value)
    return str(value)


def no_rendering(template: str, _variables: Mapping[str, Any], /) -> str:
    """Return *template* as it is: the renderer for applications that fill templates themselves."""
    return template


DEFAULT_RENDERER = PlaceholderRenderer()


@dataclass(frozen=True)
class PromptTemplate:
    """A template with some of its values, ready to become a message.

    Attributes:
        template: The text with placeholders.
        variables: Values known already.
        renderer: What fills the placeholders.

    Raises:
        TemplateError: The template is blank.
        WrongTypeError: The template is not a text, or the values are not a mapping.
    """

    template: str
    variables: Mapping[str, Any] = EMPTY
    renderer: TemplateRenderer = DEFAULT_RENDERER

    def __post_init__(self) -> None:
        check_kind("a template", self.template, str)
        check_kind("the variables of a template", self.variables, Mapping)
        freeze_fields(self, "variables")
        if not self.template.strip():
            msg = "the template is blank"
            raise TemplateError(msg)

    @classmethod
    def from_file(cls, path: str | Path, /, **variables: Any) -> "PromptTemplate":
        """Read the template from a UTF-8 file.

        Raises:
            OSError: The file cannot be read.
            TemplateError: It is blank.
        """
        return cls(Path(path).read_text(encoding="utf-8"), variables)

    def render(self, /, **variables: Any) -> str:
        """Return the text with every placeholder filled; *variables* go before those known.

        Raises:
            TemplateError: Some are missing.
        """
        return rendered(self.renderer, self.template, merged(self.variables, variables))

    def user_message(self, /, **variables: Any) -> UserMessage:
        """Return the rendered text as a user message; see `render`."""
        return UserMessage(self.render(**variables))

    def system_message(self, /, **variables: Any) -> SystemMessage:
        """Return the rendered text as a system message; see `render`."""
        return SystemMessage(self.render(**variables))


def rendered(renderer: TemplateRenderer, template: str, values: Mapping[str, Any]) -> str:
    """Return what *renderer* makes of *template*, whoever wrote it.

    Raises:
        TemplateError: Values are missing.
        WrongTypeError: The renderer returned no text.
    """
    text = renderer(template, values)
    check_kind("what a template renderer returns", text, str)
    return text


def require_placeholders(template: PromptTemplate, *names: str) -> None:
    """Make sure that *template* has a place for each of *names*.

    Raises:
        TemplateError: Some are missing, or there are others.
    """
    marks = {name: uuid4().hex for name in names}
    rendered = template.render(**marks)
    missing = [name for name, mark in marks.items() if mark not in rendered]
    if missing:
        msg = f"the template has no {', '.join(f'{{{name}}}' for name in missing)}"
        raise TemplateError(msg, missing=missing)
