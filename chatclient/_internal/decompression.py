"""Unpacks compressed content in pieces of limited size."""

import zlib
from collections.abc import Iterator

_INPUT, _OUTPUT = 2**16, 2**18  # bytes at a time
_HEADER = 2  # bytes of the header of deflate, a multiple of 31


class Decompressor:
    """Unpacks gzip or deflate in pieces, so that the caller can count their bytes and stop.

    HTTP libraries may unpack each chunk completely, to a thousand times its size.

    Args:
        encoding: The content encoding: `gzip`, `x-gzip` or `deflate`.
    """

    def __init__(self, encoding: str) -> None:
        # The beginning of deflate, until it is known to have the header of the standard: some
        # servers send it without.
        self._beginning: bytes | None = b"" if encoding == "deflate" else None
        bits = zlib.MAX_WBITS if encoding == "deflate" else 16 + zlib.MAX_WBITS
        self._object = zlib.decompressobj(bits)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield what *data* unpacks to.

        Raises:
            zlib.error: The content is damaged.
        """
        for at in range(0, len(data), _INPUT):
            rest, piece = data[at : at + _INPUT], b""
            if self._beginning is not None:
                rest = self._after_header(rest)
            while rest or len(piece) == _OUTPUT:
                piece = self._object.decompress(rest, _OUTPUT)
                rest = self._object.unconsumed_tail
                if piece:
                    yield piece

    def _after_header(self, data: bytes) -> bytes:
        """Return what is left of the beginning of deflate, with *data*, to unpack."""
        self._beginning = beginning = (self._beginning or b"") + data
        if len(beginning) < _HEADER:
            return b""
        self._beginning = None
        if int.from_bytes(beginning[:_HEADER]) % 31 or beginning[0] & 15 != zlib.DEFLATED:
            self._object = zlib.decompressobj(-zlib.MAX_WBITS)
        return beginning
