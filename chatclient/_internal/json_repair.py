"""Repairs malformed JSON written by models, where only one reading is possible."""

import json
import re

from chatclient._internal.json import loads

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
_LITERALS = {"True": "true", "False": "false", "None": "null"}
_COMPLETE_WORDS = frozenset(_LITERALS.values())  # not a prefix of any other token


def repair_json(text: str) -> str | None:
    """Return *text* as valid JSON, or None if the intended value is not certain.

    Repairs code fences, trailing commas, missing or surplus closing brackets, single quotes,
    Python's `True`, `False` and `None`, line breaks in strings, JSON that was encoded twice, and
    JSON that a server streamed and then repeated in full. Valid JSON is returned unchanged.

    Text that ends within a string or a number is taken for truncated and not repaired: completing
    it could yield another value than the model intended.
    """
    text = replace_surrogates(text).strip().removeprefix("\ufeff")
    if text.startswith(_FENCE):
        text = re.sub(r"^[a-zA-Z0-9]*", "", text[len(_FENCE) :]).removesuffix(_FENCE).strip()
    for candidate in (text, _rewritten(text), _repeated_object(text)):
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
    """Return *text* with every token in JSON syntax and open brackets closed; None if it cannot."""
    result: list[str] = []
    closers: list[str] = []
    position = 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            return None
        position = token.end()
        piece = token[0].lstrip()
        match token.lastgroup:
            case "open":
                closers.append(_CLOSER[piece])
            case "close":
                if not closers:
                    return "".join(result) if not text[position:].strip("}] \t\r\n") else None
                if closers.pop() != piece:
                    return None
                _drop_comma(result)
            case "word":
                piece = _LITERALS.get(piece, piece)
                if position == len(text) and piece not in _COMPLETE_WORDS:
                    return None
            case "double" | "single":
                inside = piece[1:-1].replace("\\'", "'")
                if piece[0] == "'":
                    inside = re.sub(r'(\\.)|"', lambda match: match[1] or '\\"', inside)
                piece = (
                    '"'
                    + re.sub(r"[\x00-\x1f]", lambda match: json.dumps(match[0])[1:-1], inside)
                    + '"'
                )
            case _:
                pass
        result.append(piece)
    _drop_comma(result)
    return "".join([*result, *reversed(closers)])


_MOST_STARTS = 100


def _repeated_object(text: str) -> str | None:
    """Return the object at the end of *text* if the text before it is `{}` or a prefix of it.

    Some servers stream the arguments of a call and send them in full once more at the end. Gateways
    for Anthropic models put the initial empty input (`{}`) before the streamed one.
    """
    start = 0
    for _ in range(_MOST_STARTS):
        start = text.find("{", start + 1)
        if start < 0:
            break
        prefix = text[:start].rstrip()
        if prefix == "{}" or text.startswith(prefix, start):
            return _rewritten(text[start:])
    return None


def _drop_comma(pieces: list[str]) -> None:
    if pieces and pieces[-1] == ",":
        pieces.pop()


def replace_surrogates(text: str) -> str:
    """Return *text* with each lone surrogate replaced by U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
