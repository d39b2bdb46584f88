"""Templates: placeholders are filled, every other brace is left alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatclient.errors import TemplateError
from chatclient.messages import SystemMessage, UserMessage
from chatclient.template import PlaceholderRenderer, PromptTemplate, no_rendering

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
        ("{{name}}", "{Ada}"),
        ("no placeholder", "no placeholder"),
        ("", ""),
    ],
)
def test_placeholders_are_filled(template: str, expected: str) -> None:
    """Wherever a name stands in braces, its value takes the place."""
    assert render(template, ADA) == expected


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
def test_other_braces_are_left_alone(template: str) -> None:
    """JSON, code and formulas may stand in a template as they are."""
    assert render(template, ADA) == template


@given(st.text())
def test_text_without_placeholders_is_never_changed(text: str) -> None:
    """Whatever a template says outside of placeholders is what is sent."""
    plain = text.replace("{", "(")

    assert render(plain, {}) == plain
    assert render(f"{plain} {{name}}", ADA) == f"{plain} Ada"


@given(st.text())
def test_values_are_not_rendered_again(value: str) -> None:
    """What a user typed stays what it is, be it a placeholder, an escape or a pattern."""
    assert render("<{name}{other}>", {"name": value, "other": "{name}"}) == f"<{value}{{name}}>"


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
def test_a_backslash_keeps_a_placeholder(template: str, expected: str) -> None:
    """An escaped placeholder appears as one; other backslashes mean nothing."""
    assert render(template, ADA) == expected


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
def test_values_are_shown_plainly(value: object, expected: str) -> None:
    """None is nothing, lists are joined, everything else is what `str` makes of it."""
    assert render("{value}", {"value": value}) == expected


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
def test_dots_reach_into_values(template: str, expected: str) -> None:
    """Keys of mappings and attributes of objects, as deep as need be, in any script."""
    variables = {
        "user": {"name": "Ada", "address": {"city": "London"}},
        "person": Person("Ada"),
        "space": SimpleNamespace(person=Person("Ada")),
        "_own": "mine",
        "straße": {"größe": 5},
        "名": "x",
    }

    assert render(template, variables) == expected


def test_mappings_have_keys_not_methods() -> None:
    """A key wins over a method of its name, and a method is never shown instead of a key."""
    assert render("{user.items}", {"user": {"items": 3}}) == "3"
    with pytest.raises(TemplateError):
        render("{user.keys}", {"user": {}})


@pytest.mark.parametrize("template", ["{person._secret}", "{person.__class__}", "{person.name._x}"])
def test_private_attributes_are_out_of_reach(template: str) -> None:
    """A template from elsewhere reads nothing that is not public: it is no placeholder at all."""
    assert render(template, {"person": Person("Ada")}) == template


def test_all_missing_names_are_listed_at_once() -> None:
    """Sorted, once each, in the message and for programs; dotted ones in full."""
    with pytest.raises(TemplateError) as caught:
        render("{b} {name} {a} {b} {user.age} {user.name.first} {none.x}", {**ADA, "none": None})

    assert caught.value.missing == ("a", "b", "none.x", "user.age", "user.name.first")
    assert str(caught.value) == (
        "the template needs values for a, b, none.x, user.age, user.name.first; "
        "pass them with params= beside a text, and by name to render()"
    )


@pytest.mark.parametrize("path", ["user.age", "person.age", "nobody"])
def test_what_cannot_be_reached_is_missing(path: str) -> None:
    """A key or attribute that is not there is as missing as a name."""
    with pytest.raises(TemplateError) as caught:
        render(f"{{{path}}}", {"user": ADA, "person": Person("Ada")})

    assert caught.value.missing == (path,)


def test_unused_values_do_not_matter() -> None:
    """One set of values may serve many templates."""
    assert render("Hi", ADA) == "Hi"


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
def test_delimiters_can_be_changed(start: str, end: str) -> None:
    """Whatever they are, patterns included: they delimit, they can be escaped, braces are text."""
    other = PlaceholderRenderer(start, end)
    placeholder = f"{start}name{end}"

    assert other(f"Hi {placeholder}!", ADA) == "Hi Ada!"
    assert other(f"\\{placeholder}", ADA) == placeholder
    assert other("{ name }", ADA) == "{ name }"


@pytest.mark.parametrize(("start", "end"), [("", "}"), ("{", ""), ("", "")])
def test_delimiters_must_delimit(start: str, end: str) -> None:
    """Without both of them every word would be a placeholder."""
    with pytest.raises(TemplateError, match="needs a start and an end"):
        PlaceholderRenderer(start, end)


def test_renderers_are_values() -> None:
    """Two of the same delimiters are equal, and print as they were made."""
    assert PlaceholderRenderer("<", ">") == PlaceholderRenderer("<", ">")
    assert PlaceholderRenderer("<", ">") != render
    assert repr(render) == "PlaceholderRenderer(start='{', end='}')"


def test_rendering_can_be_left_to_the_application() -> None:
    """The other renderer gives back what it was given."""
    assert no_rendering("{name}", ADA) == "{name}"


# --- PromptTemplate -------------------------------------------------------------------------


def test_a_template_is_filled_when_it_is_rendered() -> None:
    """Values given then win over those known already, and do not stay."""
    template = PromptTemplate("{greeting} {name}", {"greeting": "Hi", "name": "you"})

    assert template.render(name="Ada") == "Hi Ada"
    assert template.render() == "Hi you"


def test_a_template_keeps_the_values_that_it_was_given() -> None:
    """Whoever made it cannot change it through them, and it can be a key."""
    values = {"name": "Ada"}
    template = PromptTemplate("Hi {name}", values)
    values["name"] = "Bob"

    assert template.render() == "Hi Ada"
    assert {template: 1}[PromptTemplate("Hi {name}", {"name": "Ada"})] == 1
    with pytest.raises(TypeError, match="the variables of a template"):
        PromptTemplate("Hi {name}", ["Ada"])  # type: ignore[arg-type]


def test_a_value_that_cannot_be_shown_is_not_missing() -> None:
    """What its own code raises is told, not that there is no value."""

    class Broken:
        def __str__(self) -> str:
            raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        PromptTemplate("{it}").render(it=Broken())


def test_a_template_becomes_a_message() -> None:
    """Of the user or of the system, as is needed."""
    template = PromptTemplate("Hi {name}", ADA)

    assert template.user_message() == UserMessage("Hi Ada")
    assert template.system_message(name="Bob") == SystemMessage("Hi Bob")


def test_a_template_names_what_it_misses() -> None:
    """It is the renderer's error, whichever way it is rendered."""
    with pytest.raises(TemplateError, match="needs values for name"):
        PromptTemplate("Hi {name}").user_message(nam="Ada")


def test_any_function_renders() -> None:
    """A template is rendered by whatever it was given, with all its values."""

    def shout(template: str, variables: Mapping[str, Any], /) -> str:
        return f"{template} {sorted(variables)}".upper()

    assert PromptTemplate("hi", ADA, shout).render(b=1) == "HI ['B', 'NAME']"
    assert PromptTemplate("{x}", renderer=no_rendering).render() == "{x}"


def test_a_template_is_read_from_a_file(tmp_path: Path) -> None:
    """As UTF-8, with the values known already."""
    path = tmp_path / "greeting.txt"
    path.write_text("Grüß {name}", encoding="utf-8")

    assert PromptTemplate.from_file(path, name="Ada").render() == "Grüß Ada"
    assert PromptTemplate.from_file(str(path)).render(name="Bob") == "Grüß Bob"


@pytest.mark.parametrize("blank", ["", " \n"])
def test_a_blank_template_is_refused(blank: str) -> None:
    """It is a mistake: there would be nothing to send."""
    with pytest.raises(TemplateError, match="blank"):
        PromptTemplate(blank)


def test_variables_may_have_any_name(tmp_path: Path) -> None:
    """Also those that the parameters of the methods have."""
    file = tmp_path / "template.txt"
    file.write_text("{path} of {self}")

    assert PromptTemplate.from_file(file, path="/x").render(self="me") == "/x of me"
