"""Docstrings: what of them is for the model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatclient.tools.docstring import Docstring, parse_docstring

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

    Notes
    -----
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


@pytest.mark.parametrize("doc", [GOOGLE, NUMPY, REST], ids=["google", "numpy", "rest"])
def test_all_styles_say_the_same(doc: str) -> None:
    """The three styles lead to the same summary and the same descriptions on one line."""
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
def test_no_docstring_says_nothing(doc: str | None) -> None:
    """Without a docstring there is neither a summary nor a description."""
    assert parse_docstring(doc) == Docstring()


@pytest.mark.parametrize("title", ["Args", "Arguments", "Parameters", "Keyword Args"])
def test_google_titles(title: str) -> None:
    """All the usual titles of a Google section are known."""
    doc = f"Do it.\n\n{title}:\n    x: The place."

    assert parse_docstring(doc).parameters == {"x": "The place."}


def test_text_after_a_section_belongs_to_the_summary() -> None:
    """What stands after an indented section, unindented again, is text like any other."""
    doc = "Do it.\n\nArgs:\n    x: The place.\n\nIt may take long."

    assert parse_docstring(doc).summary == "Do it.\n\nIt may take long."


def test_a_docstring_that_is_one_section() -> None:
    """Arguments are found when the docstring says nothing else."""
    parsed = parse_docstring("Args:\n        x: The place.\n        y: The time.")

    assert parsed == Docstring("", {"x": "The place.", "y": "The time."})


def test_parameters_that_share_a_description() -> None:
    """Names joined by commas have the same description."""
    doc = "Do it.\n\nParameters\n----------\nx, y : int\n    A coordinate.\n"

    assert parse_docstring(doc).parameters == {"x": "A coordinate.", "y": "A coordinate."}


def test_a_colon_does_not_make_a_section() -> None:
    """Titles count only alone on a line, and only those that are known."""
    doc = "Args: none.\n\nSteps:\n    one: this\n"

    assert parse_docstring(doc) == Docstring("Args: none.\n\nSteps:\n    one: this")


def test_an_underline_alone_does_not_make_a_section() -> None:
    """A heading that is no known title stays in the summary."""
    doc = "Do it.\n\nSteps\n-----\nThis and that."

    assert parse_docstring(doc).summary == doc


def test_parameters_without_a_description_are_left_out() -> None:
    """A name that nothing is said about is no description."""
    doc = "Do it.\n\nArgs:\n    x:\n    stray line\n    y: The time.\n\n:param z:\n:param:"

    assert parse_docstring(doc).parameters == {"x": "stray line", "y": "The time."}


def test_text_before_the_first_parameter_is_skipped() -> None:
    """Words in a section that belong to no parameter are nobody's description."""
    doc = "Do it.\n\nArgs:\n    (all in metres)\n    x: The place."

    assert parse_docstring(doc).parameters == {"x": "The place."}


def test_a_rest_field_ends_at_a_blank_line() -> None:
    """Text after a field and a blank line is the summary's again."""
    doc = "Do it.\n\n:param x: The place.\n\n    Indented text."

    assert parse_docstring(doc) == Docstring("Do it.\n\n    Indented text.", {"x": "The place."})


@given(
    st.lists(
        st.sampled_from([*GOOGLE.splitlines(), *NUMPY.splitlines(), *REST.splitlines()])
        | st.text(max_size=12)
    ).map("\n".join)
)
def test_nothing_raises(doc: str) -> None:
    """Prose of any kind, and sections of all styles in any disorder, can be read."""
    parsed = parse_docstring(doc)

    assert all("\n" not in text for text in parsed.parameters.values())


@pytest.mark.parametrize(
    "item",
    ["- city: The city.", "* `city` (str): The city.", "`city`: The city.", "+ ``city``: The city.",
     "city (Annotated[str, Field(min_length=(1))], optional): The city."],
)  # fmt: skip
def test_items_may_be_written_as_lists_and_code(item: str) -> None:
    """Markdown is at home in many docstrings."""
    doc = f"Find.\n\nArgs:\n    {item}\n    - days: How many.\n"

    assert parse_docstring(doc) == Docstring("Find.", {"city": "The city.", "days": "How many."})
