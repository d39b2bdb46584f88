"""Removes reasoning from answers, for servers that do not separate it."""

import re

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
        pattern = _closing_pattern(begin[0])
        close = None if pattern in missing else re.compile(pattern, re.IGNORECASE).search(text, end)
        if close is None:
            missing.add(pattern)
            continue
        kept.append(text[at : begin.start()])
        at = end = close.end()
    return _CLOSING_ONLY.sub("", "".join([*kept, text[at:]]))


def _closing_pattern(opener: str) -> str:
    """Return the pattern of the end of reasoning that begins with *opener*."""
    if opener.startswith(_FENCE):
        return r"```\s*"
    if opener.startswith("<!"):
        return r"-->\s*"
    return rf"</{opener[1:-1]}>\s*"


def answer_so_far(text: str) -> str:
    """Return the answer in partial *text*, without reasoning; empty while the model reasons."""
    text = without_thoughts(text).strip()
    lower = text.lower()
    if _OPENING.match(text) or any(tag.startswith(lower) for tag in _OPENING_TAGS):
        return ""
    return text
