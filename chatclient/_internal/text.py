"""Prepares text for messages, logs and terminals; removes reasoning from it, and redacts it."""

import base64
import binascii
import html
import re
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any, Literal

from chatclient._internal.json import dumps, loads

# Control characters except tabs and line feeds, marks that change the direction of text, other line
# separators, surrogates, which no terminal can encode, and invisible text (annotations, tags).
_UNPRINTABLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
    r"\ud800-\udfff\ufff9-\ufffb\U000e0000-\U000e007f]"
)

_LONG_RUN = re.compile(r"([^\w\s!-~]{30})[^\w\s!-~]+")


def normalized(form: Literal["NFC", "NFKC", "NFKD"], text: str) -> str:
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


_OPENING = re.compile(
    r"<(?:think|thinking|reasoning)>|```thinking\b|<!--\s*thinking:", re.IGNORECASE
)
# If the chat template ends with `<think>`, the answer has only the closing tag.
_CLOSING_ONLY = re.compile(r"^.*</(?:think|thinking|reasoning)>\s*", re.DOTALL | re.IGNORECASE)
_OPENING_TAGS = ("<think>", "<thinking>", "<reasoning>", "```thinking", "<!-- thinking:")
_FENCE = "```"


def without_thoughts(text: str) -> str:
    """Return *text* without reasoning in tags, a code fence or a comment.

    Reasoning without an end is kept, because the beginning of the answer is unknown.
    """
    if "<" not in text and _FENCE not in text:
        return text
    kept: list[str] = []
    missing: set[str] = set()  # patterns without a further match; keeps the search linear
    at = end = 0
    while (begin := _OPENING.search(text, end)) is not None:
        end = begin.end()
        opener = begin[0]
        if opener.startswith(_FENCE):
            pattern = r"```\s*"
        elif opener.startswith("<!"):
            pattern = r"-->\s*"
        else:
            pattern = rf"</{opener[1:-1]}>\s*"
        close = None if pattern in missing else re.compile(pattern, re.IGNORECASE).search(text, end)
        if close is None:
            missing.add(pattern)
            continue
        kept.append(text[at : begin.start()])
        at = end = close.end()
    return _CLOSING_ONLY.sub("", "".join([*kept, text[at:]]))


def answer_so_far(text: str) -> str:
    """Return the answer in partial *text*, without reasoning; empty while the model reasons."""
    text = without_thoughts(text).strip()
    lower = text.lower()
    if _OPENING.match(text) or any(tag.startswith(lower) for tag in _OPENING_TAGS):
        return ""
    return text


_ESCAPED = re.compile(r'["\\\x00-\x1f]')  # characters that JSON strings escape


def redacted_text(redact: Callable[[str], str], text: str) -> str:
    r"""Return *text* redacted; if it is JSON, its strings are redacted unescaped first.

    In `"card:\n4111"`, a pattern with a word boundary before the number matches only after the
    escape `\n` has become a line break.
    """
    return redact(_with_redacted_strings(redact, text))


def _with_redacted_strings(redact: Callable[[str], str], text: str) -> str:
    if "\\" not in text:
        return text
    try:
        data = loads(text)
    except ValueError:
        return text
    redacted = _redacted_strings(redact, data)
    return text if redacted == data else dumps(redacted).decode()


def _redacted_strings(redact: Callable[[str], str], data: Any) -> Any:
    match data:
        case str() if _ESCAPED.search(data):
            return redacted_text(redact, data)
        case list():
            return [_redacted_strings(redact, item) for item in data]
        case dict():
            return {key: _redacted_strings(redact, value) for key, value in data.items()}
        case _:
            return data


# Letters that look like Latin ones.
_LOOKALIKES = str.maketrans(
    "аеорсхуіјѕһԁԛԝАВЕКМНОРСТХІЈЅαονιρτυκΑΒΕΖΗΙΚΜΝΟΡΤΥΧ",
    "aeopcxyijshdqwABEKMHOPCTXIJSaovipTukABEZHIKMNOPTYX",
)
_INVISIBLE = re.compile(
    r"[\u00ad\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\U000e0000-\U000e01ef]"
)
_ENCODED = re.compile(r"[A-Za-z0-9+/_-]{16,}={0,2}")
_PERCENT = re.compile(r"(?:%[0-9A-Fa-f]{2})+")


def readable_text(text: str) -> str:
    """Return *text* without disguises, and below it what is encoded in it.

    Invisible characters are removed, HTML entities and percent signs decoded, and letters that only
    look like others replaced. Base64 and hexadecimal texts follow if they contain words.
    """
    text = _PERCENT.sub(_from_percent, text)
    text = html.unescape(text)
    if not text.isascii():
        text = normalized("NFKC", _INVISIBLE.sub("", text))
        latin = text.translate(_LOOKALIKES)
        if latin != text:
            text = f"{text}\n{latin}"
    encoded = [decoded for found in _ENCODED.findall(text) for decoded in _encoded_in(found)]
    return "\n".join((text, *encoded))


def _encoded_in(text: str) -> Iterator[str]:
    """Yield what *text* stands for as hexadecimal or Base64 text, if it is readable."""
    bare = text.rstrip("=")
    for decode in (bytes.fromhex, _from_base64):
        try:
            decoded = decode(bare).decode()
        except (ValueError, binascii.Error):
            continue
        if not _UNPRINTABLE.search(decoded):
            yield decoded


def _from_base64(text: str) -> bytes:
    standard = text.replace("-", "+").replace("_", "/")
    return base64.b64decode(f"{standard}{'=' * (-len(text) % 4)}", validate=True)


def _from_percent(found: re.Match[str]) -> str:
    return bytes.fromhex(found[0].replace("%", "")).decode(errors="replace")
