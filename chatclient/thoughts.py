"""What models think aloud in their answers, where the server does not tell it apart."""

import re

_BEGIN_OF_THOUGHT = re.compile(
    r"<(?:think|thinking|reasoning)>|```thinking\b|<!--\s*thinking:", re.IGNORECASE
)
# Templates that end with `<think>` leave only the end of the thoughts in the answer.
_END_OF_THOUGHTS = re.compile(r"^.*</(?:think|thinking|reasoning)>\s*", re.DOTALL | re.IGNORECASE)
_MARKS = ("<think>", "<thinking>", "<reasoning>", "```thinking", "<!-- thinking:")
_FENCE = "```"


def without_thoughts(text: str) -> str:
    """Return *text* without what the model thought aloud, in tags, a fence or a comment.

    Thoughts that never end are left: what is answer and what is thought cannot be told apart.
    """
    if "<" not in text and _FENCE not in text:
        return text
    kept: list[str] = []
    unended: set[str] = set()
    at = end = 0
    while (begin := _BEGIN_OF_THOUGHT.search(text, end)) is not None:
        end = begin.end()
        closer = _closer_of(begin[0])
        # Looked for in vain once, an end is not looked for again: many beginnings take no longer.
        ended = None if closer in unended else re.compile(closer, re.IGNORECASE).search(text, end)
        if ended is None:
            unended.add(closer)
            continue
        kept.append(text[at : begin.start()])
        at = end = ended.end()
    return _END_OF_THOUGHTS.sub("", "".join([*kept, text[at:]]))


def _closer_of(opener: str) -> str:
    """Return the pattern of what ends a thought that begins with *opener*."""
    if opener.startswith(_FENCE):
        return r"```\s*"
    if opener.startswith("<!"):
        return r"-->\s*"
    return rf"</{opener[1:-1]}>\s*"


def answer_so_far(text: str) -> str:
    """Return the answer in *text*, the beginning of one; empty while the model still thinks."""
    text = without_thoughts(text).strip()
    begun = text.lower()
    if _BEGIN_OF_THOUGHT.match(text) or any(mark.startswith(begun) for mark in _MARKS):
        return ""
    return text
