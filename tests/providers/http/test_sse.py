"""Server-sent events by the WHATWG rules, in chunks of any size."""

import random

import pytest
from hypothesis import given, strategies as st

from chatclient.errors import InvalidResponseError
from chatclient.providers.http.reader import ServerSentEventDecoder


def events_in(*chunks: bytes) -> list[tuple[str, str]]:
    """Return the events of a stream that comes in *chunks*, as (type, data)."""
    decoder = ServerSentEventDecoder()
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    return [(kind, data.decode()) for data, kind in events]


def bytes_of(text: str) -> list[bytes]:
    return [bytes([byte]) for byte in text.encode()]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        ("data: a\n\n", [("", "a")]),
        ("data:a\n\n", [("", "a")]),
        ("data:  a\n\n", [("", " a")]),
        ("data: a\ndata: b\n\n", [("", "a\nb")]),
        ("data\n\n", [("", "")]),
        ("data\ndata\n\n", [("", "\n")]),
        ("data:\n\n", [("", "")]),
        ("data: a\n\ndata: b\n\n", [("", "a"), ("", "b")]),
        ("event: error\ndata: a\n\n", [("error", "a")]),
        ("data: a\nevent:error\n\n", [("error", "a")]),
        ("event: x\n\ndata: a\n\n", [("", "a")]),
        ("event: x\ndata: a\n\ndata: b\n\n", [("x", "a"), ("", "b")]),
        (": comment\ndata: a\n: more\n\n", [("", "a")]),
        (":\n\n:\n\ndata: a\n\n", [("", "a")]),
        ("id: 7\nretry: 3000\ndata: a\n\n", [("", "a")]),
        ("id\nretry\n\n", []),
        ("unknown: x\nData: y\n\n", []),
        ("data : a\n\n", []),
        ("\n\n\n", []),
        ("", []),
    ],
)
def test_event_fields(stream: str, expected: list[tuple[str, str]]) -> None:
    """Fields are parsed as in the standard, also byte by byte."""
    assert events_in(stream.encode()) == expected
    assert events_in(*bytes_of(stream)) == expected


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_endings(end: str) -> None:
    """LF, CR and CRLF end a line."""
    stream = f"event: x{end}data: a{end}data: b{end}{end}data: c{end}{end}"

    expected = [("x", "a\nb"), ("", "c")]
    assert events_in(stream.encode()) == expected
    assert events_in(*bytes_of(stream)) == expected


def test_mixed_line_endings() -> None:
    """Line endings may be mixed."""
    assert events_in(b"data: a\rdata: b\r\ndata: c\n\r\ndata: d\r\r") == [
        ("", "a\nb\nc"),
        ("", "d"),
    ]


def test_split_crlf() -> None:
    """A LF at the start of a chunk does not end a second line if a CR precedes it."""
    assert events_in(b"data: a\r", b"\ndata: b\r", b"\n\r", b"\n") == [("", "a\nb")]
    assert events_in(b"data: a\n", b"\ndata: b\r\n\r\n") == [("", "a"), ("", "b")]


def test_carriage_return_dispatches_immediately() -> None:
    """An event is dispatched without waiting for a possible LF."""
    decoder = ServerSentEventDecoder()

    assert decoder.feed(b"data: a\r\r") == [(b"a", "")]
    assert decoder.feed(b"") == []
    assert decoder.feed(b"data: b\n\n") == [(b"b", "")]


@pytest.mark.parametrize(
    "chunks",
    [
        [b"\xef\xbb\xbfdata: a\n\n"],
        [b"\xef", b"\xbb", b"\xbf", b"data: a\n\n"],
        [b"", b"\xef\xbb", b"\xbfdata: a\n\n"],
    ],
)
def test_leading_bom_is_ignored(chunks: list[bytes]) -> None:
    """A BOM at the start is ignored, also when it is split."""
    assert events_in(*chunks) == [("", "a")]


def test_second_bom_is_part_of_the_field() -> None:
    """A second BOM is part of the field name, which is then unknown."""
    assert events_in("\ufeff\ufeffdata: a\n\ndata: b\n\n".encode()) == [("", "b")]


def test_partial_bom_is_text() -> None:
    """Bytes that only start like a BOM are kept."""
    assert events_in(b"\xef\xbb", b"data: a\n\ndata: b\n\n") == [("", "b")]


def test_split_utf8_and_unicode_separators() -> None:
    """Split UTF-8 is joined; U+2028, U+2029 and U+0085 do not end lines."""
    text = "ä€𝄞\u2028\u2029\x85\x0b\x0c"

    assert events_in(*bytes_of(f"data: {text}\n\n")) == [("", text)]


def test_error_field_of_llama_cpp() -> None:
    """The non-standard field `error` becomes an event."""
    assert events_in(b'error: {"message":"no"}\n\n') == [("", '{"error":{"message":"no"}}')]


@pytest.mark.parametrize(
    ("stream", "left"),
    [
        (b"data: a\n\n", b""),
        (b"data: a", b"a"),
        (b"data: a\n", b"a"),
        (b"data: a\ndata: b", b"a\nb"),
        (b"data: a\n\n: bye", b""),
        (b'{\n  "error": 1\n}\n', b'{\n  "error": 1\n}'),
        (b'data: a\n\n{"error": 1}', b'{"error": 1}'),
        (b"", b""),
    ],
)
def test_remainder_of_the_stream(stream: bytes, left: bytes) -> None:
    """The end of a stream returns the text of its unfinished event."""
    decoder = ServerSentEventDecoder()
    decoder.feed(stream)

    assert decoder.finish() == left


@pytest.mark.parametrize(
    "chunks",
    [
        [b"data: " + b"x" * 60, b"x" * 60],
        [b"data: x\n"] * 20,
        [b"data: a\n\ndata: " + b"x" * 110],
    ],
)
def test_event_beyond_the_limit(chunks: list[bytes]) -> None:
    """A line or an event beyond the limit raises."""
    decoder = ServerSentEventDecoder(limit=100)

    with pytest.raises(InvalidResponseError, match="larger than 100 bytes"):
        list(map(decoder.feed, chunks))


def test_limit_is_per_event() -> None:
    """A long stream of short events is not limited."""
    decoder = ServerSentEventDecoder(limit=100)

    assert sum(len(decoder.feed(b"data: 0123456789\n\nda")) for _ in range(1)) == 1
    assert sum(len(decoder.feed(b"ta: 0123456789\n\nda")) for _ in range(100)) == 100


def test_unknown_lines_are_not_collected() -> None:
    """Of a stream without events only the beginning is kept."""
    decoder = ServerSentEventDecoder()
    for _ in range(2000):
        decoder.feed(b"<p>no event stream</p>\n")

    assert len(decoder.finish().splitlines()) == 1000


FIELDS = st.sampled_from(
    ["data: a", "data:b", "data", "data: ä€𝄞\u2028", "event: x", "id: 1", ": c", "retry: 1", "", ""]
)


@given(
    lines=st.lists(st.tuples(FIELDS, st.sampled_from(["\n", "\r\n", "\r"])), max_size=30),
    bom=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_any_chunking_gives_the_same_events(
    lines: list[tuple[str, str]], *, bom: bool, seed: int
) -> None:
    """Any chunking of a stream gives the same events and remainder."""
    text = ("\ufeff" if bom else "") + "".join(field + end for field, end in lines)
    stream = text.encode()
    complete, cut = ServerSentEventDecoder(), ServerSentEventDecoder()
    chosen = random.Random(seed)
    places = sorted(chosen.choices(range(len(stream) + 1), k=chosen.randint(0, 20)))
    chunks = [stream[a:b] for a, b in zip([0, *places], [*places, len(stream)], strict=True)]

    events = [event for chunk in chunks for event in cut.feed(chunk)]
    assert events == complete.feed(stream)
    assert cut.finish() == complete.finish()


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_decoder_accepts_any_bytes(chunks: list[bytes]) -> None:
    """No byte sequence makes the decoder fail."""
    decoder = ServerSentEventDecoder()
    for chunk in chunks:
        decoder.feed(chunk)

    assert isinstance(decoder.finish(), bytes)
