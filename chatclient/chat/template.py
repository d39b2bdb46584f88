"""Prompt templates: texts with placeholders, and their renderers."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from chatclient._internal.checks import attribute_hints, check_callable, check_type
from chatclient._internal.frozen import EMPTY, freeze_fields, merged
from chatclient.chat.messages import SystemMessage, UserMessage
from chatclient.errors import TemplateError


class TemplateRenderer(Protocol):
    """Renders templates; a function with this signature is one."""

    def __call__(self, template: str, variables: Mapping[str, Any], /) -> str:
        """Return *template* with its placeholders replaced by *variables*.

        Raises:
            TemplateError: The template cannot be rendered with them.
        """
        ...


@dataclass(frozen=True)
class PlaceholderRenderer:
    r"""Replaces `{name}` and leaves other braces unchanged, so that templates may contain JSON.

    `{user.name}` reads a key of a mapping or a public attribute of an object. A backslash escapes a
    placeholder: `\{name}` becomes `{name}`. None is rendered as an empty text, lists are joined
    with commas, other values are converted with `str`. Values are not rendered themselves.

    Attributes:
        start: The start delimiter of a placeholder.
        end: The end delimiter.
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
        """Return *template* with its placeholders replaced by *variables*.

        Raises:
            TemplateError: Some are missing; the error lists all of them.
        """
        missing: set[str] = set()

        def fill(match: re.Match[str]) -> str:
            escape, path = match.groups()
            if escape:
                return match.group()[1:]
            # Another pair of delimiters may surround the placeholder directly.
            text = match.string
            if text.endswith(self.start, 0, match.start()) and text.startswith(
                self.end, match.end()
            ):
                msg = (
                    f"the template has {self.start * 2}{path}{self.end * 2}, which other template "
                    f"languages use; write {self.start}{path}{self.end} for the value, or "
                    f"{self.start}\\{self.start}{path}{self.end * 2} for the text with braces"
                )
                raise TemplateError(msg)
            try:
                first, *rest = path.split(".")
                value = variables[first]
                for name in rest:
                    value = value[name] if isinstance(value, Mapping) else getattr(value, name)
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


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(_shown(item) for item in value)
    return str(value)


def no_rendering(template: str, _variables: Mapping[str, Any], /) -> str:
    """Return *template* unchanged: the renderer for texts that are not templates."""
    return template


DEFAULT_RENDERER = PlaceholderRenderer()


@dataclass(frozen=True)
class PromptTemplate:
    """A template and values for some of its placeholders.

    Attributes:
        template: The text with placeholders.
        variables: Values of placeholders.
        renderer: The renderer.

    Raises:
        TemplateError: The template is blank.
        WrongTypeError: The template is not a text, the values are not a mapping, or the renderer is
            not callable.
    """

    template: str
    variables: Mapping[str, Any] = EMPTY
    renderer: TemplateRenderer = DEFAULT_RENDERER

    def __post_init__(self) -> None:
        check_type("a template", self.template, str)
        check_type("the variables of a template", self.variables, Mapping)
        check_callable("a template renderer", self.renderer, takes=("template", "values"))
        freeze_fields(self, "variables")
        if not self.template.strip():
            msg = "the template is blank"
            raise TemplateError(msg)

    if not TYPE_CHECKING:  # type checkers know all attributes
        __getattr__ = attribute_hints(
            dict.fromkeys(("create", "format", "invoke"), "it is .render(name=...)")
        )

    @classmethod
    def from_file(cls, path: str | Path, /, **variables: Any) -> "PromptTemplate":
        """Read the template from a UTF-8 file.

        Raises:
            OSError: The file cannot be read.
            TemplateError: It is blank.
        """
        return cls(Path(path).read_text(encoding="utf-8"), variables)

    def render(self, /, **variables: Any) -> str:
        """Return the rendered text; *variables* override those of the template.

        Raises:
            TemplateError: Some are missing.
        """
        return render_checked(self.renderer, self.template, merged(self.variables, variables))

    def user_message(self, /, **variables: Any) -> UserMessage:
        """Return the rendered text as a user message; see `render`."""
        return UserMessage(self.render(**variables))

    def system_message(self, /, **variables: Any) -> SystemMessage:
        """Return the rendered text as a system message; see `render`."""
        return SystemMessage(self.render(**variables))


def render_checked(renderer: TemplateRenderer, template: str, values: Mapping[str, Any]) -> str:
    """Return *template* rendered by *renderer*.

    Raises:
        TemplateError: Values are missing.
        WrongTypeError: The renderer did not return a text.
    """
    text = renderer(template, values)
    check_type("what a template renderer returns", text, str)
    return text


def require_placeholders(template: PromptTemplate, *names: str) -> None:
    """Check that *template* has placeholders for *names* and no others.

    Raises:
        TemplateError: It does not.
    """
    values = {name: uuid4().hex for name in names}
    rendered = template.render(**values)
    missing = [name for name, value in values.items() if value not in rendered]
    if missing:
        msg = f"the template has no {', '.join(f'{{{name}}}' for name in missing)}"
        raise TemplateError(msg, missing=missing)
