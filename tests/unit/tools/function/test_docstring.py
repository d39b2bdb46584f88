"""Parsing of docstrings into descriptions."""

import pytest
from hypothesis import given, strategies as st

from chatclient.tools.function.docstring import Docstring, parse_docstring

GOOGLE = """Look up the weather.

    Asks the station that is nearest.

    Args:
        city (str): The city,
            with its country: such as Paris, France.

            Also a post code.
        days (int, optional): How many days
        *rest: What else.
        on_done (Callable[[int, tuple[str, ...]], None]): Called at the end.
        unit: Celsius: or Fahrenheit.

    Returns:
        report: the weather

    Raises:
        ValueError: never
    """

NUMPY = """Look up the weather.

    Asks the station that is nearest.

    Parameters
    ----------
    city : str
        The city,
        with its country: such as Paris, France.

        Also a post code.
    days : int, optional
        How many days
    *rest
        What else.
    on_done : Callable[[int, tuple[str, ...]], None]
        Called at the end.
    unit
        Celsius: or Fahrenheit.

    Returns
    -------
    report : str
        the weather

    See Also
    --------
    Slow.
    """

REST = """Look up the weather.

    Asks the station that is nearest.

    :param city: The city,
        with its country: such as Paris, France.
        Also a post code.
    :type city: str
    :param int days: How many days
    :param rest: What else.
    :param on_done: Called at the end.
    :keyword unit: Celsius: or Fahrenheit.
    :returns: the weather
    :rtype: str
    :raises ValueError: never
    """


@pytest.mark.feature("tool-description-without-text-raw")
@pytest.mark.parametrize("doc", [GOOGLE, NUMPY, REST], ids=["google", "numpy", "rest"])
def test_styles(doc: str) -> None:
    """The three styles give the same summary and descriptions."""
    assert parse_docstring(doc) == Docstring(
        "Look up the weather.\n\nAsks the station that is nearest.",
        {
            "city": "The city, with its country: such as Paris, France. Also a post code.",
            "days": "How many days",
            "rest": "What else.",
            "on_done": "Called at the end.",
            "unit": "Celsius: or Fahrenheit.",
        },
    )


@pytest.mark.parametrize("doc", [None, "", "  \n "])
def test_missing_docstring(doc: str | None) -> None:
    """Without a docstring there is no description."""
    assert parse_docstring(doc) == Docstring()


@pytest.mark.parametrize("title", ["Args", "Arguments", "Parameters", "Keyword Args"])
def test_google_titles(title: str) -> None:
    """All usual titles of Google sections are known."""
    doc = f"Do it.\n\n{title}:\n    x: The place."

    assert parse_docstring(doc).parameters == {"x": "The place."}


@pytest.mark.parametrize("title", ["Note", "Warning", "Usage"])
@pytest.mark.parametrize("form", ["{}:\n    Not on Sundays.", "{}\n-------\nNot on Sundays."])
def test_notes_are_part_of_the_description(title: str, form: str) -> None:
    """Notes, which may state when to call the tool, are in the summary."""
    doc = f"Do it.\n\n{form.format(title)}"

    assert "Not on Sundays." in parse_docstring(doc).summary
    assert "---" not in parse_docstring(doc).summary


def test_text_after_a_section() -> None:
    """Unindented text after a section is part of the summary."""
    doc = "Do it.\n\nArgs:\n    x: The place.\n\nIt may take long."

    assert parse_docstring(doc).summary == "Do it.\n\nIt may take long."


def test_section_without_summary() -> None:
    """A docstring may consist of one section."""
    parsed = parse_docstring("Args:\n        x: The place.\n        y: The time.")

    assert parsed == Docstring("", {"x": "The place.", "y": "The time."})


def test_shared_description() -> None:
    """Names separated by commas have the same description."""
    doc = "Do it.\n\nParameters\n----------\nx, y : int\n    A coordinate.\n"

    assert parse_docstring(doc).parameters == {"x": "A coordinate.", "y": "A coordinate."}


def test_colon_in_text() -> None:
    """A section title must be known and alone on its line."""
    doc = "Args: none.\n\nSteps:\n    one: this\n"

    assert parse_docstring(doc) == Docstring("Args: none.\n\nSteps:\n    one: this")


def test_unknown_heading() -> None:
    """An unknown heading stays in the summary."""
    doc = "Do it.\n\nSteps\n-----\nThis and that."

    assert parse_docstring(doc).summary == doc


def test_parameter_without_description() -> None:
    """A name without text has no description."""
    doc = "Do it.\n\nArgs:\n    x:\n    stray line\n    y: The time.\n\n:param z:\n:param:"

    assert parse_docstring(doc).parameters == {"x": "stray line", "y": "The time."}


def test_text_before_the_first_parameter_is_skipped() -> None:
    """Text before the first parameter of a section is ignored."""
    doc = "Do it.\n\nArgs:\n    (all in metres)\n    x: The place."

    assert parse_docstring(doc).parameters == {"x": "The place."}


def test_rest_field_end() -> None:
    """A field ends at a blank line."""
    doc = "Do it.\n\n:param x: The place.\n\n    Indented text."

    assert parse_docstring(doc) == Docstring("Do it.\n\n    Indented text.", {"x": "The place."})


@given(
    st.lists(
        st.sampled_from([*GOOGLE.splitlines(), *NUMPY.splitlines(), *REST.splitlines()])
        | st.text(max_size=12)
    ).map("\n".join)
)
def test_any_text_is_parsed(doc: str) -> None:
    """No text makes the parser raise."""
    parsed = parse_docstring(doc)

    assert all("\n" not in text for text in parsed.parameters.values())


@pytest.mark.parametrize(
    "item",
    ["- city: The city.", "* `city` (str): The city.", "`city`: The city.", "+ ``city``: The city.",
     "city (Annotated[str, Field(min_length=(1))], optional): The city."],
)  # fmt: skip
def test_markdown_items(item: str) -> None:
    """Items may be Markdown lists and code."""
    doc = f"Find.\n\nArgs:\n    {item}\n    - days: How many.\n"

    assert parse_docstring(doc) == Docstring("Find.", {"city": "The city.", "days": "How many."})
