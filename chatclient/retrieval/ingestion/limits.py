"""`ReadLimits`, and the count of what a file yields while it is read."""

from dataclasses import dataclass, fields

from chatclient._internal.checks import check_number, check_type


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Limits for what is read.

    Attributes:
        file_bytes: The maximum size of a file.
        unpacked_bytes: The maximum size of an Office file when it is unpacked.
        files: The maximum number of files.
        characters: The maximum length of the text that a file becomes. A small file may become a
            long text, for example an Excel file in which many cells have the same text.
        rows: The maximum number of rows in an Excel or CSV file, blank ones included.

    Raises:
        UsageError: A limit is less than 1.
    """

    file_bytes: int = 50_000_000
    unpacked_bytes: int = 500_000_000
    files: int = 100_000
    characters: int = 50_000_000
    rows: int = 1_048_576  # as many as a sheet of Excel has

    def __post_init__(self) -> None:
        for each in fields(self):
            check_type(each.name, getattr(self, each.name), int)
            check_number(each.name, getattr(self, each.name), least=1)


class TooLargeError(ValueError):
    """A file exceeds a limit."""


class Extent:
    """What a file has yielded so far; exceeding a limit ends the reading.

    Args:
        limits: The limits.
    """

    def __init__(self, limits: ReadLimits) -> None:
        self.limits = limits
        self.characters = 0
        self._rows = 0

    def add(self, characters: int) -> None:
        """Count *characters* of text.

        Raises:
            TooLargeError: There are too many.
        """
        self.characters += characters
        if self.characters > self.limits.characters:
            raise _exceeded("characters", f"its text has more than {self.limits.characters}")

    def add_row(self) -> None:
        """Count a row of a table.

        Raises:
            TooLargeError: There are too many.
        """
        self._rows += 1
        if self._rows > self.limits.rows:
            raise _exceeded("rows", f"it has more than {self.limits.rows}")


def _exceeded(limit: str, what: str) -> TooLargeError:
    return TooLargeError(f"{what} {limit}, the limit; raise ReadLimits({limit}=) if it is intended")
