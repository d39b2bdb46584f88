"""Text for terminals."""

import pytest

from chatclient._internal.text import printable, printable_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\nand 日本語 🙂", "plain\ttext\nand 日本語 🙂"),
        ("\x1b]52;c;aGk=\x07", "\\x1b]52;c;aGk=\\x07"),
        ("a\rb", "a\\rb"),
        ("a\r\nb", "a\nb"),
        ("\x9b2J\u202egnp.exe\u2028", "\\x9b2J\\u202egnp.exe\\u2028"),
        ("half \ud83d", "half \\ud83d"),
        ("a\u061cb\ufff9c", "a\\u061cb\\ufff9c"),
        ("hidden\U000e0041", "hidden\\U000e0041"),
    ],
)
def test_printable(text: str, shown: str) -> None:
    assert printable(text) == shown
    printable(text).encode()


def test_printable_line() -> None:
    assert printable_line("a\nb\r\nc") == "a\\nb\\nc"
