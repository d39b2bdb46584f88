"""The names of tools: valid names, and the words of a name."""

import hashlib
import re
import unicodedata

from chatclient.errors import ToolDefinitionError

_ACCEPTED = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_LONGEST = 64
_DIGEST = 8

# Where a new word begins: `getHTTPStatus` is get HTTP status.
_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def check_tool_name(name: str) -> str:
    """Return *name* when every provider accepts it: 1 to 64 ASCII letters, digits, `_` and `-`.

    Raises:
        ToolDefinitionError: It is not accepted; the error proposes one that is.
    """
    if _ACCEPTED.fullmatch(name):
        return name
    msg = (
        f"{name!r} cannot be the name of a tool: providers accept 1 to 64 letters (a-z, A-Z),"
        f" digits, '_' and '-'; {sanitise_tool_name(name)!r} would do"
    )
    raise ToolDefinitionError(msg)


def sanitise_tool_name(name: str) -> str:
    """Return a name like *name* that every provider accepts; itself, if it already is one.

    Accents are dropped and everything else that is not accepted becomes `_`. A name that would lose
    its meaning that way, being too long or in another script, gets a digest of the original, so
    that two names that differ stay different.
    """
    if _ACCEPTED.fullmatch(name):
        return name
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    safe = re.sub(r"[^a-zA-Z0-9-]+", "_", plain).strip("_")
    if len(safe) > _LONGEST or not re.search("[a-zA-Z0-9]", safe):
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
        stem = safe[: _LONGEST - _DIGEST - 1].strip("_-") or "tool"
        safe = f"{stem}_{digest}"
    return safe


def describe_name(name: str) -> str:
    """Return the words of *name*: those of `getCurrentTime` are "get current time"."""
    spaced = _WORD_START.sub(" ", re.sub(r"[\W_]+", " ", name))
    return " ".join(spaced.lower().split())
