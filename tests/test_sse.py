"""Server-sent events by the WHATWG rules, whatever the network makes of the bytes."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatclient.errors import InvalidResponseError
from chatclient.providers.sse import ServerSentEventDecoder


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
def test_fields_make_events(stream: str, expected: list[tuple[str, str]]) -> None:
    """Fields mean what the standard says, also when each byte comes alone."""
    assert events_in(stream.encode()) == expected
    assert events_in(*bytes_of(stream)) == expected


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_in_three_ways(end: str) -> None:
    """Line feed, carriage return and both together each end one line."""
    stream = f"event: x{end}data: a{end}data: b{end}{end}data: c{end}{end}"

    expected = [("x", "a\nb"), ("", "c")]
    assert events_in(stream.encode()) == expected
    assert events_in(*bytes_of(stream)) == expected


def test_line_ends_may_be_mixed() -> None:
    """Each line may end in its own way."""
    assert events_in(b"data: a\rdata: b\r\ndata: c\n\r\ndata: d\r\r") == [
        ("", "a\nb\nc"),
        ("", "d"),
    ]


def test_a_crlf_may_be_cut_in_two() -> None:
    """A line feed that comes in the next chunk is not a second line end; after another it is."""
    assert events_in(b"data: a\r", b"\ndata: b\r", b"\n\r", b"\n") == [("", "a\nb")]
    assert events_in(b"data: a\n", b"\ndata: b\r\n\r\n") == [("", "a"), ("", "b")]


def test_a_carriage_return_ends_its_line_at_once() -> None:
    """An event is not held back until it is known whether a line feed follows."""
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
def test_a_byte_order_mark_at_the_start_is_passed_over(chunks: list[bytes]) -> None:
    """One BOM at the very start belongs to the encoding, wherever it is cut."""
    assert events_in(*chunks) == [("", "a")]


def test_only_the_first_byte_order_mark_is_passed_over() -> None:
    """A second one is part of the field's name, which is then unknown."""
    assert events_in("\ufeff\ufeffdata: a\n\ndata: b\n\n".encode()) == [("", "b")]


def test_what_begins_like_a_byte_order_mark_may_be_text() -> None:
    """Bytes that only look like the beginning of a BOM are not lost."""
    assert events_in(b"\xef\xbb", b"data: a\n\ndata: b\n\n") == [("", "b")]


def test_characters_may_be_cut_and_unicode_line_ends_are_none() -> None:
    """UTF-8 may be cut inside a character; U+2028, U+2029 and U+0085 stay where they are."""
    text = "ä€𝄞\u2028\u2029\x85\x0b\x0c"

    assert events_in(*bytes_of(f"data: {text}\n\n")) == [("", text)]


def test_a_stream_of_llama_cpp_may_have_an_error_field() -> None:
    """A field called error, which is no field of the standard, becomes an event of its own."""
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
def test_what_never_became_an_event_is_kept(stream: bytes, left: bytes) -> None:
    """The end of a stream tells what its last, unfinished event held, or what was no event."""
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
def test_an_event_beyond_the_limit_is_refused(chunks: list[bytes]) -> None:
    """A line, or an event of many lines, that never ends does not fill the memory."""
    decoder = ServerSentEventDecoder(limit=100)

    with pytest.raises(InvalidResponseError, match="larger than 100 bytes"):
        list(map(decoder.feed, chunks))


def test_the_limit_is_for_each_event() -> None:
    """A long stream of short events may go on for ever."""
    decoder = ServerSentEventDecoder(limit=100)

    assert sum(len(decoder.feed(b"data: 0123456789\n\nda")) for _ in range(1)) == 1
    assert sum(len(decoder.feed(b"ta: 0123456789\n\nda")) for _ in range(100)) == 100


def test_lines_that_are_no_events_do_not_pile_up() -> None:
    """Of an endless answer that is not an event stream, only the beginning is kept."""
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
def test_where_a_stream_is_cut_does_not_matter(
    lines: list[tuple[str, str]], *, bom: bool, seed: int
) -> None:
    """Any way to cut a stream gives the same events and the same rest."""
    text = ("\ufeff" if bom else "") + "".join(field + end for field, end in lines)
    stream = text.encode()
    whole, cut = ServerSentEventDecoder(), ServerSentEventDecoder()
    chosen = random.Random(seed)
    places = sorted(chosen.choices(range(len(stream) + 1), k=chosen.randint(0, 20)))
    chunks = [stream[a:b] for a, b in zip([0, *places], [*places, len(stream)], strict=True)]

    events = [event for chunk in chunks for event in cut.feed(chunk)]
    assert events == whole.feed(stream)
    assert cut.finish() == whole.finish()


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_no_bytes_make_the_decoder_fail(chunks: list[bytes]) -> None:
    """Whatever a server sends is a stream, if perhaps one without events."""
    decoder = ServerSentEventDecoder()
    for chunk in chunks:
        decoder.feed(chunk)

    assert isinstance(decoder.finish(), bytes)
