"""Words that are nearly another: a letter wrong, missing or too many, or two swapped."""

from collections.abc import Iterator

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_SHORTEST = 5  # letters; shorter words have too many neighbours that mean something else
_LONGEST = 30  # letters; what is longer is no word, and has too many neighbours to look up


def neighbours(word: str) -> Iterator[str]:
    """Yield all that *word* could be if somebody has made one mistake; most are no words."""
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
