"""Slips of models when they write JSON, mended where only one thing can be meant."""

import json
import re

from chatclient.json import loads

_FENCE = "```"
_TOKEN = re.compile(
    r"""
    \s*(?:
        (?P<double>"(?:[^"\\]|\\.)*")
      | (?P<single>'(?:[^'\\]|\\.)*')
      | (?P<open>[{\[])
      | (?P<close>[}\]])
      | (?P<comma>,)
      | (?P<colon>:)
      | (?P<word>[\w.+-]+)
    )
    """,
    re.VERBOSE | re.DOTALL,
)
_CLOSER = {"{": "}", "[": "]"}
_WORDS = {"True": "true", "False": "false", "None": "null"}
_WHOLE = frozenset(_WORDS.values())  # words that do not go on


def repair_json(text: str) -> str | None:
    """Return the JSON that *text* was meant to be, or None when that is not certain.

    Mends code fences around it, a trailing comma, brackets and braces missing at the end or too
    many of them, single quotes, Python's `True`, `False` and `None`, line breaks inside strings,
    JSON that was encoded twice, and JSON that a server has streamed and then sent again as a whole.
    JSON without damage comes back as it is.

    What ends within a string, or with a number that might go on, was cut off: not all servers say
    so, and half a value is another one.
    """
    text = whole_text(text).strip().removeprefix("\ufeff")
    if text.startswith(_FENCE):
        text = re.sub(r"^[a-zA-Z0-9]*", "", text[len(_FENCE) :]).removesuffix(_FENCE).strip()
    for candidate in (text, _rewritten(text), _sent_again(text)):
        if candidate is None:
            continue
        try:
            value = loads(candidate)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, str):
            return repair_json(value) if value.lstrip()[:1] in ("{", "[", '"') else candidate
        return candidate
    return None


def _rewritten(text: str) -> str | None:
    """Return *text* with its tokens as JSON writes them and what is open closed."""
    result: list[str] = []
    closers: list[str] = []
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            return None
        at = token.end()
        piece = token[0].lstrip()
        match token.lastgroup:
            case "open":
                closers.append(_CLOSER[piece])
            case "close":
                if not closers:
                    return "".join(result) if not text[at:].strip("}] \t\r\n") else None
                if closers.pop() != piece:
                    return None
                _drop_comma(result)
            case "word":
                piece = _WORDS.get(piece, piece)
                if at == len(text) and piece not in _WHOLE:
                    return None
            case "double" | "single":
                piece = _string(piece)
            case _:
                pass
        result.append(piece)
    _drop_comma(result)
    return "".join([*result, *reversed(closers)])


_MOST_STARTS = 100


def _sent_again(text: str) -> str | None:
    """Return the object at the end of *text*, if what goes before is the beginning of it, or `{}`.

    Parsers of some servers stream the arguments of a call and send all of them at the end once
    more; gateways begin with the empty input that Anthropic announces a call with.
    """
    start = 0
    for _ in range(_MOST_STARTS):
        start = text.find("{", start + 1)
        if start < 0:
            break
        begun = text[:start].rstrip()
        if begun == "{}" or text.startswith(begun, start):
            return _rewritten(text[start:])
    return None


def _drop_comma(pieces: list[str]) -> None:
    if pieces and pieces[-1] == ",":
        pieces.pop()


def _string(written: str) -> str:
    """Return a string as it was *written*, with JSON's quotes and escapes."""
    inside = written[1:-1].replace("\\'", "'")
    if written[0] == "'":
        inside = re.sub(r'(\\.)|"', lambda match: match[1] or '\\"', inside)
    return '"' + re.sub(r"[\x00-\x1f]", lambda match: json.dumps(match[0])[1:-1], inside) + '"'


def whole_text(text: str) -> str:
    """Return *text* with each half of a surrogate pair replaced by U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
