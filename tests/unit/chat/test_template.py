"""Templates: placeholders are replaced, other braces are kept."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from chatclient.chat.messages import SystemMessage, UserMessage
from chatclient.chat.template import PlaceholderRenderer, PromptTemplate, no_rendering
from chatclient.errors import TemplateError

render = PlaceholderRenderer()

ADA = {"name": "Ada"}


@dataclass
class Person:
    name: str
    _secret: str = "hidden"

    @property
    def parents(self) -> list[str]:
        return ["Anne", "George"]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("Hi {name}!", "Hi Ada!"),
        ("{name}{name}", "AdaAda"),
        ("{ name }", "Ada"),
        ("no placeholder", "no placeholder"),
        ("", ""),
    ],
)
def test_placeholders(template: str, expected: str) -> None:
    """A name in braces is replaced by its value."""
    assert render(template, ADA) == expected


@pytest.mark.feature("template-invalid-syntax-error")
@pytest.mark.parametrize(
    "template",
    [
        '{"name": "x", "list": [{"a": 1}]}',
        '{"nested": {"a": {}}}',
        "{}",
        "{ }",
        "{1}",
        "{a b}",
        "{a-b}",
        "{a!r}",
        "{a:>5}",
        "{a.}",
        "{.a}",
        "{a..b}",
        "{a[0]}",
        "function() { return 1; }",
        "{name",
        "name}",
    ],
)
def test_other_braces_are_kept(template: str) -> None:
    """Braces of JSON, code and formulas are kept."""
    assert render(template, ADA) == template


@given(st.text())
def test_text_without_placeholders_is_unchanged(text: str) -> None:
    """Text outside placeholders is unchanged."""
    plain = text.replace("{", "(")

    assert render(plain, {}) == plain
    assert render(f"{plain} {{name}}", ADA) == f"{plain} Ada"


@pytest.mark.feature("template-values-rendered-again")
@given(st.text())
def test_values_are_not_rendered(value: str) -> None:
    """Placeholders, escapes and patterns in values are kept."""
    assert render("<{name}{other}>", {"name": value, "other": "{name}"}) == f"<{value}{{name}}>"


@pytest.mark.feature("template-escaped-delimiters")
@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (r"\{name}", "{name}"),
        (r"\{name} {name}", "{name} Ada"),
        (r"\{missing}", "{missing}"),
        (r'\{"a": 1}', r'\{"a": 1}'),
        (r"a\b {name}", r"a\b Ada"),
    ],
)
def test_escaped_placeholder(template: str, expected: str) -> None:
    """A backslash escapes a placeholder; other backslashes are kept."""
    assert render(template, ADA) == expected


@pytest.mark.feature("template-null-renders-blank-lists")
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ""),
        (0, "0"),
        (1.5, "1.5"),
        (False, "False"),
        ("", ""),
        (["a", 1, None], "a, 1, "),
        (("a", ["b", "c"]), "a, b, c"),
        ({"a"}, "a"),
        (frozenset({"a"}), "a"),
        ([], ""),
        ({"a": 1}, "{'a': 1}"),
    ],
)
def test_value_formatting(value: object, expected: str) -> None:
    """None is empty, lists are joined, other values use `str`."""
    assert render("{value}", {"value": value}) == expected


@pytest.mark.feature("template-user-name")
@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{user.name}", "Ada"),
        ("{user.address.city}", "London"),
        ("{person.name}", "Ada"),
        ("{person.parents}", "Anne, George"),
        ("{space.person.name}", "Ada"),
        ("{_own}", "mine"),
        ("{straße.größe} {名}", "5 x"),
    ],
)
def test_dotted_names(template: str, expected: str) -> None:
    """Dots access keys of mappings and attributes of objects at any depth."""
    variables = {
        "user": {"name": "Ada", "address": {"city": "London"}},
        "person": Person("Ada"),
        "space": SimpleNamespace(person=Person("Ada")),
        "_own": "mine",
        "straße": {"größe": 5},
        "名": "x",
    }

    assert render(template, variables) == expected


def test_keys_win_over_methods() -> None:
    """A key wins over a method of the same name, and methods are never used."""
    assert render("{user.items}", {"user": {"items": 3}}) == "3"
    with pytest.raises(TemplateError):
        render("{user.keys}", {"user": {}})


@pytest.mark.feature("template-user-name")
@pytest.mark.parametrize("template", ["{person._secret}", "{person.__class__}", "{person.name._x}"])
def test_private_attributes(template: str) -> None:
    """Names with a private attribute are no placeholders."""
    assert render(template, {"person": Person("Ada")}) == template


@pytest.mark.feature("template-missing-variables-error-all")
def test_missing_names() -> None:
    """The error lists all missing names, sorted and unique."""
    with pytest.raises(TemplateError) as caught:
        render("{b} {name} {a} {b} {user.age} {user.name.first} {none.x}", {**ADA, "none": None})

    assert caught.value.missing == ("a", "b", "none.x", "user.age", "user.name.first")
    assert str(caught.value) == (
        "the template needs values for a, b, none.x, user.age, user.name.first; "
        "pass them with params= beside a text, and by name to render()"
    )


@pytest.mark.parametrize("path", ["user.age", "person.age", "nobody"])
def test_missing_attributes(path: str) -> None:
    """A missing key or attribute is a missing name."""
    with pytest.raises(TemplateError) as caught:
        render(f"{{{path}}}", {"user": ADA, "person": Person("Ada")})

    assert caught.value.missing == (path,)


@pytest.mark.feature("template-unused-variables-ignored")
def test_unused_values() -> None:
    """Unused values are ignored."""
    assert render("Hi", ADA) == "Hi"


@pytest.mark.feature("template-delimiters")
@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("<", ">"),
        ("$", "$"),
        ("{{", "}}"),
        ("(", ")"),
        ("[", "]"),
        ("^", "*"),
        ("|", "."),
        ("${", "}"),
    ],
)
def test_custom_delimiters(start: str, end: str) -> None:
    """Any delimiters work and can be escaped; braces are then text."""
    other = PlaceholderRenderer(start, end)
    placeholder = f"{start}name{end}"

    assert other(f"Hi {placeholder}!", ADA) == "Hi Ada!"
    assert other(f"\\{placeholder}", ADA) == placeholder
    assert other("{ name }", ADA) == "{ name }"


@pytest.mark.parametrize(("start", "end"), [("", "}"), ("{", ""), ("", "")])
def test_empty_delimiters(start: str, end: str) -> None:
    """Empty delimiters are rejected."""
    with pytest.raises(TemplateError, match="needs a start and an end"):
        PlaceholderRenderer(start, end)


def test_renderer_equality_and_repr() -> None:
    """Renderers with equal delimiters are equal."""
    assert PlaceholderRenderer("<", ">") == PlaceholderRenderer("<", ">")
    assert PlaceholderRenderer("<", ">") != render
    assert repr(render) == "PlaceholderRenderer(start='{', end='}')"


@pytest.mark.feature("template-no-op-template-renderer")
def test_no_op_renderer() -> None:
    """The no-op renderer returns the template unchanged."""
    assert no_rendering("{name}", ADA) == "{name}"


# --- PromptTemplate -------------------------------------------------------------------------


@pytest.mark.feature("template-prompt-template", "template-render")
def test_render_values() -> None:
    """Values given to render win and are not kept."""
    template = PromptTemplate("{greeting} {name}", {"greeting": "Hi", "name": "you"})

    assert template.render(name="Ada") == "Hi Ada"
    assert template.render() == "Hi you"


def test_template_copies_its_values() -> None:
    """A template is independent of the given dict, and hashable."""
    values = {"name": "Ada"}
    template = PromptTemplate("Hi {name}", values)
    values["name"] = "Bob"

    assert template.render() == "Hi Ada"
    assert {template: 1}[PromptTemplate("Hi {name}", {"name": "Ada"})] == 1
    with pytest.raises(TypeError, match="the variables of a template"):
        PromptTemplate("Hi {name}", ["Ada"])  # type: ignore[arg-type]


def test_value_that_raises() -> None:
    """An error raised by a value is raised, not reported as missing."""

    class Broken:
        def __str__(self) -> str:
            raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        PromptTemplate("{it}").render(it=Broken())


@pytest.mark.feature("template-create-message-system-prompt")
def test_template_messages() -> None:
    """A template renders to a user or system message."""
    template = PromptTemplate("Hi {name}", ADA)

    assert template.user_message() == UserMessage("Hi Ada")
    assert template.system_message(name="Bob") == SystemMessage("Hi Bob")


def test_template_missing_names() -> None:
    """The renderer's error is raised by every method."""
    with pytest.raises(TemplateError, match="needs values for name"):
        PromptTemplate("Hi {name}").user_message(nam="Ada")


@pytest.mark.feature("template-renderer-your-own")
def test_render_function() -> None:
    """Any function can be the renderer."""

    def shout(template: str, variables: Mapping[str, Any], /) -> str:
        return f"{template} {sorted(variables)}".upper()

    assert PromptTemplate("hi", ADA, shout).render(b=1) == "HI ['B', 'NAME']"
    assert PromptTemplate("{x}", renderer=no_rendering).render() == "{x}"


@pytest.mark.feature("request-user-system", "template-resource")
def test_template_from_file(tmp_path: Path) -> None:
    """A file is read as UTF-8, with default values."""
    path = tmp_path / "greeting.txt"
    path.write_text("Grüß {name}", encoding="utf-8")

    assert PromptTemplate.from_file(path, name="Ada").render() == "Grüß Ada"
    assert PromptTemplate.from_file(str(path)).render(name="Bob") == "Grüß Bob"


@pytest.mark.feature("template-blank-template-refused")
@pytest.mark.parametrize("blank", ["", " \n"])
def test_blank_template(blank: str) -> None:
    """A blank template raises."""
    with pytest.raises(TemplateError, match="blank"):
        PromptTemplate(blank)


def test_any_variable_name(tmp_path: Path) -> None:
    """Variables may have the names of method parameters."""
    file = tmp_path / "template.txt"
    file.write_text("{path} of {self}")

    assert PromptTemplate.from_file(file, path="/x").render(self="me") == "/x of me"


@pytest.mark.parametrize("text", ["{{name}}", "Hello {{name}}!", '{"a": {{name}}}'])
def test_doubled_braces_are_rejected(text: str) -> None:
    """Text of another template language would leave braces around the value."""
    with pytest.raises(TemplateError, match=r"write \{name\} for the value"):
        render(text, ADA)


def test_doubled_braces_can_be_escaped() -> None:
    """The error names the form for literal braces."""
    assert render(r"{\{name}}", ADA) == "{{name}}"
