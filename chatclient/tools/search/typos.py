"""Corrections of typos: a letter replaced, missing or added, or two letters swapped."""

from collections.abc import Iterator

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_SHORTEST = 5  # letters; corrections of shorter words are often unrelated words
_LONGEST = 30  # letters; longer texts are no words, and have too many corrections


def neighbours(word: str) -> Iterator[str]:
    """Yield all texts that differ from *word* by one typo; most are no words."""
    if not _SHORTEST <= len(word) <= _LONGEST or not word.isascii() or not word.isalpha():
        return
    for at in range(len(word) + 1):
        before, after = word[:at], word[at:]
        if after:
            yield before + after[1:]
        if len(after) > 1:
            yield before + after[1] + after[0] + after[2:]
        for letter in _LETTERS:
            if after:
                yield before + letter + after[1:]
            yield before + letter + after
