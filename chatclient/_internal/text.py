"""Prepares text for error messages, log lines and terminals."""

import re
import unicodedata
from typing import Literal

# Control characters except tabs and line feeds, marks that change the direction of text, other line
# separators, surrogates, which no terminal can encode, and invisible text (annotations, tags).
_UNPRINTABLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
    r"\ud800-\udfff\ufff9-\ufffb\U000e0000-\U000e007f]"
)

_LONG_RUN = re.compile(r"([^\w\s!-~]{30})[^\w\s!-~]+")


def normalized(form: Literal["NFC", "NFKD"], text: str) -> str:
    """Return *text* in a Unicode normal *form*, with at most 30 combining marks at a character.

    Sorting the marks takes quadratic time. No word has so many; Unicode's stream-safe text format
    has the same limit. Longer runs of other signs are cut as well.
    """
    return unicodedata.normalize(form, _LONG_RUN.sub(r"\1", text))


def error_text(error: BaseException) -> str:
    """Return the message of *error*, or its type if its `__str__` fails."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - application code
        return f"{type(error).__name__} (its message cannot be shown)"


def shortened(text: str, most: int) -> str:
    """Return *text*, cut to *most* characters with an ellipsis at the end if it is longer."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def printable(text: str) -> str:
    """Return *text* for a terminal, with control characters as escapes, as in `repr`.

    Otherwise, a model or a server could move the cursor, set the clipboard, or hide text.
    """
    return _UNPRINTABLE.sub(_escape, text.replace("\r\n", "\n"))


def printable_line(text: str) -> str:
    """Return *text* like `printable`, also with line feeds as escapes."""
    return printable(text).replace("\n", "\\n")


def _escape(match: re.Match[str]) -> str:
    return ascii(match[0])[1:-1]


def on_one_line(text: str, most: int) -> str:
    """Return *text* on one line, cut to *most* characters."""
    return shortened(" ".join(text.split()), most)


def as_clause(sentence: str) -> str:
    """Return *sentence* with a lower-case first letter, unless it begins with an acronym."""
    return sentence if sentence[1:2].isupper() else sentence[:1].lower() + sentence[1:]


def text_as_html(text: str, tag: str = "div") -> str:
    """Return *text* with its lines in a tag, for a notebook."""
    from html import escape  # noqa: PLC0415 - its table of names is rarely needed

    return f'<{tag} style="white-space:pre-wrap">{escape(text)}</{tag}>'
