"""Texts of others, as messages and lines for people show them: never more than fits."""


def shortened(text: str, most: int) -> str:
    """Return *text*, or as much of it as *most* characters hold with a mark that there was more."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def on_one_line(text: str, most: int) -> str:
    """Return *text* as a line of at most *most* characters."""
    return shortened(" ".join(text.split()), most)


def as_clause(sentence: str) -> str:
    """Return *sentence* without its capital, for the end of another; `UUID` stays one."""
    return sentence if sentence[1:2].isupper() else sentence[:1].lower() + sentence[1:]
