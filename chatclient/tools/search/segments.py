"""The tools of each session, stored once for all sessions that share them.

The tools of a session are its catalog. Catalogs are identified by their content, so that ten
thousand sessions with the same tools share one. A catalog consists of immutable segments with the
data that an index has built for their tools. A catalog that differs little from an existing one
reuses its segments, without the removed tools, and adds a segment for the new ones. So a change
costs only as much as has changed, and sessions with a few different tools share the others.
"""

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Generic, TypeVar

from chatclient.retrieval.keywords.inverted_index import (
    Field,
    IndexedDocument,
    InvertedIndex,
    term_impacts,
)
from chatclient.retrieval.keywords.tokenizer import Words
from chatclient.runtime.threads import ForkSafeLock, register_after_fork
from chatclient.tools.search.index import ToolReference, ToolSearchRequest

P = TypeVar("P")

_KEPT = 8  # unused catalogs that are kept, because sessions of single requests recur
_MOST_SEGMENTS = 5  # maximum number of segments of a catalog; a search visits each
_SMALL_CHANGE = 16  # fewer changed tools than this never cause a complete rebuild
_FILTERS = 16  # cached filter results of a catalog

_OBJECT = (dict, Mapping)  # usually a dict, which is much faster to check
_NESTING = frozenset({"properties", "items", "$defs"})  # keywords with nested parameters

# Tuned on 16,000 tools and 3,000 queries, so that both of two random halves improve.
_NAME = Field(1.7, 1.0, 4.0)
_SUMMARY = Field(0.6, 0.45, 11.5)
_PARAMETER_NAMES = Field(0.46, 0.6, 4.3)
_PARAMETER_DESCRIPTIONS = Field(0.30, 0.27, 14.0)
_VALUES = Field(0.17, 1.0, 1.3)
_SATURATION = 0.8


@dataclass(eq=False)
class Segment(Generic[P]):
    """Tools that are indexed together.

    Attributes:
        references: The tools; a tool's number is its position.
        payload: The data that an index has built for them, or None.
        building: Locked while the payload is built.
        catalogs: The number of catalogs with this segment.
    """

    references: tuple[ToolReference, ...]
    payload: P | None = None
    building: threading.Lock = field(default_factory=threading.Lock)
    catalogs: int = 0

    def __post_init__(self) -> None:
        register_after_fork(self)

    def after_fork(self) -> None:
        """Replace the lock: a thread that does not exist in the child may hold it."""
        self.building = threading.Lock()

    def built(self, build: Callable[[Sequence[ToolReference]], P]) -> P:
        """Return the payload; the first thread builds it, the others wait."""
        with self.building:
            if self.payload is None:
                self.payload = build(self.references)
            return self.payload


@dataclass(frozen=True, slots=True, eq=False)
class SegmentView(Generic[P]):
    """The tools of a segment that a catalog contains.

    Attributes:
        segment: The segment.
        offset: The number of its first tool in the catalog.
        removed: The numbers (within the segment) of tools that the catalog does not contain.
    """

    segment: Segment[P]
    offset: int = 0
    removed: frozenset[int] = frozenset()

    def live(self) -> Iterator[tuple[int, ToolReference]]:
        """Yield the tools of the catalog, with their numbers within the segment."""
        for number, reference in enumerate(self.segment.references):
            if number not in self.removed:
                yield number, reference

    def __len__(self) -> int:
        return len(self.segment.references) - len(self.removed)


class Catalog(Generic[P]):
    """The tools of one or many sessions; its content is immutable.

    Attributes:
        key: A digest of the content.
        views: The segments with its tools.
        size: The number of tools.
        sessions: The number of sessions with this catalog.
    """

    def __init__(self, key: bytes, views: Iterable[SegmentView[P]]) -> None:
        self.key = key
        self.views: tuple[SegmentView[P], ...] = tuple(views)
        self.size = sum(map(len, self.views))
        self.sessions = 0
        self._restricted = any(r.roles for view in self.views for _, r in view.live())
        self._admitted: OrderedDict[tuple[frozenset[str], frozenset[str]], frozenset[int]]
        self._admitted = OrderedDict()

    def reference(self, number: int) -> ToolReference:
        """Return the tool with *number* in the catalog."""
        for view in self.views:
            within = number - view.offset
            if within < len(view.segment.references):
                return view.segment.references[within]
        raise IndexError(number)

    def admitted(self, request: ToolSearchRequest) -> frozenset[int] | None:
        """Return the numbers of the tools that a request may find by category and role.

        None means all. Names that the request excludes are not considered.
        """
        categories = request.wanted_categories
        roles = frozenset(request.roles) if self._restricted else frozenset()
        if not categories and not self._restricted:
            return None
        numbers = self._admitted.get((categories, roles))
        if numbers is None:
            bare = ToolSearchRequest("", "", category_filter=categories, roles=roles)
            numbers = frozenset(
                view.offset + number
                for view in self.views
                for number, reference in view.live()
                if bare.admits(reference)
            )
            # Concurrent threads compute the same result, and dicts are thread-safe.
            self._admitted[categories, roles] = numbers
            while len(self._admitted) > _FILTERS:
                self._admitted.popitem(last=False)
        return numbers


@dataclass(frozen=True, slots=True)
class Change(Generic[P]):
    """The result of a change of a session's tools.

    Attributes:
        catalog: The new catalog of the session, or None.
        dropped: Segments that no catalog contains any more.
    """

    catalog: Catalog[P] | None
    dropped: tuple[Segment[P], ...] = ()


class Catalogs(Generic[P]):
    """The catalogs of all sessions; thread-safe."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._sessions: dict[str, Catalog[P]] = {}
        self._catalogs: dict[bytes, Catalog[P]] = {}
        # Catalogs in the order of their last use, each with the tuple that was last assigned.
        self._recent: OrderedDict[bytes, tuple[ToolReference, ...]] = OrderedDict()

    def of(self, session_id: str) -> Catalog[P] | None:
        """Return the catalog of a session, or None."""
        return self._sessions.get(session_id)

    def assign(self, session_id: str, references: Sequence[ToolReference]) -> Change[P]:
        """Replace the tools of a session by *references*."""
        with self._lock:
            before = self._sessions.get(session_id)
            same = self._assigned_as(references, before)
        assigned = tuple(references)
        unique = () if same else _by_name(assigned)
        key = (
            same.key
            if same
            else blake2b(b"".join(r.fingerprint for r in unique), digest_size=16).digest()
        )
        with self._lock:
            before = self._sessions.get(session_id)
            catalog = self._catalogs.get(key)
            if catalog is None:
                # It may have been dropped since the first lookup.
                unique = unique or _by_name(assigned)
                catalog = self._add(Catalog(key, self._views(unique, before)))
            self._recent[key] = assigned
            self._recent.move_to_end(key)
            if catalog is before:
                return Change(catalog, self._release(None) if len(self._recent) > _KEPT else ())
            catalog.sessions += 1
            self._sessions[session_id] = catalog
            return Change(catalog, self._release(before))

    def remove(self, session_id: str) -> Change[P]:
        """Remove a session."""
        with self._lock:
            return Change(None, self._release(self._sessions.pop(session_id, None)))

    def clear(self) -> tuple[Segment[P], ...]:
        """Remove all sessions and return all segments."""
        with self._lock:
            segments = {
                id(view.segment): view.segment
                for catalog in self._catalogs.values()
                for view in catalog.views
            }
            self._sessions.clear()
            self._catalogs.clear()
            self._recent.clear()
            for segment in segments.values():
                segment.catalogs = 0
            return tuple(segments.values())

    def _assigned_as(
        self, references: Sequence[ToolReference], before: Catalog[P] | None
    ) -> Catalog[P] | None:
        """Return the catalog that was made from the same tuple object."""
        if before is not None and self._recent.get(before.key) is references:
            return before
        key = next((key for key, assigned in self._recent.items() if assigned is references), None)
        return None if key is None else self._catalogs[key]

    def _add(self, catalog: Catalog[P]) -> Catalog[P]:
        self._catalogs[catalog.key] = catalog
        for view in catalog.views:
            view.segment.catalogs += 1
        return catalog

    def _release(self, catalog: Catalog[P] | None) -> tuple[Segment[P], ...]:
        """Release a session's use of *catalog*, and drop catalogs that were unused for long."""
        if catalog is not None:
            catalog.sessions -= 1
        over = list(self._recent)[: max(0, len(self._recent) - _KEPT)]
        for key in over:
            del self._recent[key]
        # The released catalog may be among them.
        unused = {key: self._catalogs[key] for key in over}
        if catalog is not None and catalog.key not in self._recent:
            unused[catalog.key] = catalog
        dropped = (self._drop(each) for each in unused.values() if not each.sessions)
        return tuple(itertools.chain.from_iterable(dropped))

    def _drop(self, catalog: Catalog[P]) -> Iterator[Segment[P]]:
        del self._catalogs[catalog.key]
        for view in catalog.views:
            view.segment.catalogs -= 1
            if not view.segment.catalogs:
                yield view.segment

    def _views(
        self, references: Sequence[ToolReference], before: Catalog[P] | None
    ) -> list[SegmentView[P]]:
        """Return the views of a new catalog, reusing those of the most similar one if possible."""
        new = {reference.fingerprint: reference for reference in references}
        recent = [self._catalogs[key] for key in self._recent]
        best: list[SegmentView[P]] | None = None
        least = max(_SMALL_CHANGE, len(references) // 4)
        for base in [*([before] if before is not None else ()), *reversed(recent)]:
            if abs(base.size - len(references)) > least:
                continue
            present = {r.fingerprint for view in base.views for _, r in view.live()}
            change = len(present ^ new.keys())
            if change < least:
                least = change
                best = _derived(base, new)
        return (
            best if best is not None else _consecutive([(Segment(tuple(references)), frozenset())])
        )


def _derived(base: Catalog[P], new: dict[bytes, ToolReference]) -> list[SegmentView[P]] | None:
    """Return the views of *base* changed to the *new* tools; None if most differ."""
    missing = dict(new)
    views: list[SegmentView[P]] = []
    for view in base.views:
        removed = {number for number, r in view.live() if missing.pop(r.fingerprint, None) is None}
        views.append(SegmentView(view.segment, 0, view.removed | removed))
    if not views or len(views[0]) < len(new) // 2:
        return None
    if len(views) >= _MOST_SEGMENTS:
        missing.update((r.fingerprint, r) for view in views[1:] for _, r in view.live())
        del views[1:]
    segments = [(view.segment, view.removed) for view in views if len(view)]
    if missing:
        segments.append((Segment(tuple(missing.values())), frozenset()))
    return _consecutive(segments)


def _consecutive(segments: Iterable[tuple[Segment[P], frozenset[int]]]) -> list[SegmentView[P]]:
    """Return views with consecutive numbers for their tools."""
    views: list[SegmentView[P]] = []
    offset = 0
    for segment, removed in segments:
        views.append(SegmentView(segment, offset, removed))
        offset += len(segment.references)
    return views


def _by_name(references: Sequence[ToolReference]) -> tuple[ToolReference, ...]:
    """Return the tools sorted by name, the first one of each name."""
    unique: dict[str, ToolReference] = {}
    for reference in references:
        unique.setdefault(reference.tool_name, reference)
    return tuple(unique[name] for name in sorted(unique))


def index_of(references: Sequence[ToolReference], words: Words) -> InvertedIndex:
    """Return an index of tools."""
    return InvertedIndex(_document(reference, words) for reference in references)


def _document(reference: ToolReference, words: Words) -> IndexedDocument:
    names, descriptions, values = parameter_texts(reference.parameters)
    in_name = words.identifier_terms(reference.tool_name)
    in_values = words.terms(" ".join(values))
    fields = (
        (_NAME, in_name),
        (_SUMMARY, words.terms(reference.summary)),
        (_PARAMETER_NAMES, words.identifier_terms(*names)),
        (_PARAMETER_DESCRIPTIONS, words.terms(" ".join(descriptions))),
        (_VALUES, in_values),
    )
    impacts = term_impacts(fields, _SATURATION, name=in_name, values=in_values)
    required = reference.parameters.get("required")
    return IndexedDocument(impacts, len(required) if isinstance(required, list) else 0)


def parameter_texts(schema: Any) -> tuple[list[str], list[str], list[str]]:
    """Return the names, descriptions and allowed values of all parameters in a JSON Schema."""
    names: list[str] = []
    descriptions: list[str] = []
    values: list[str] = []
    for name, parameter in _parameters(schema):
        if name:
            names.append(name)
            description = parameter.get("description")
            if isinstance(description, str):
                descriptions.append(description)
        allowed = parameter.get("enum")
        if isinstance(allowed, list):
            values += [value for value in allowed if isinstance(value, str)]
    return names, descriptions, values


def _parameters(schema: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every parameter at any depth; items of lists have no name."""
    if not isinstance(schema, _OBJECT):
        return
    properties = schema.get("properties")
    if isinstance(properties, _OBJECT):
        for name, parameter in properties.items():
            if isinstance(parameter, _OBJECT):
                yield name, parameter
                if not _NESTING.isdisjoint(parameter):
                    yield from _parameters(parameter)
    items = schema.get("items")
    if isinstance(items, _OBJECT):
        yield "", items
        yield from _parameters(items)
    definitions = schema.get("$defs")
    if isinstance(definitions, _OBJECT):
        for definition in definitions.values():
            yield from _parameters(definition)
