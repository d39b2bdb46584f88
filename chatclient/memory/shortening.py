"""`Shortening`: what a model is shown of a conversation that does not fit its context window."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from chatclient.chat.message_merging import CORRECTION, begins_turn
from chatclient.chat.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
)
from chatclient.chat.tool import HANDOFF
from chatclient.memory.window import TokenEstimator

READ_RESULT = "read_tool_result"
"""The name of the tool with which a model reads results that it is not shown."""

_KEPT_RESULTS = 3  # newest messages with results, which are left out last
_SHARES = 16  # no result is larger than this part of the room, once something had to be left out
_LEAST_SHARE = 256  # tokens
_HINT = 48  # tokens of the text that says how a cut result is read
_FOUND = 10  # results of a search
_AROUND = 120  # characters on either side of what was found
_LONGEST_ARGUMENTS = 200  # characters


class Shortening:
    """A conversation, shortened whenever it has outgrown the room for it.

    The messages are added in order, and what is shown depends on nothing else. When they exceed the
    room, so much is left out that half of it is free; then nothing changes until it is full again,
    so that providers can cache the beginning of the prompts:

    1. Old tool results are replaced by a short text, but not those of the newest three messages
       with results. From then on, new results are cut to a sixteenth of the room.
    2. The oldest turns are removed, if *turns* is true; never the current one.
    3. The results that were kept are replaced, too, except the newest.
    4. The oldest tool calls are removed together with their results.

    The numbers in the texts are those of the results in the conversation, from 1; with them,
    `read` and `search` return the complete results.

    Args:
        room: How many tokens may be shown.
        estimate: Returns the number of tokens of a message.
        results: Whether tool results and calls are shortened.
        turns: Whether turns are removed.
        readable: Whether the model has a tool that reads results.

    Attributes:
        messages: The messages so far, complete.
        active: Whether something has been left out.
        tokens: The number of tokens that are shown.
        cleared: The number of messages whose results are replaced or cut.
        removed: The number of removed messages.
    """

    def __init__(
        self,
        room: int,
        estimate: TokenEstimator,
        *,
        results: bool = True,
        turns: bool = True,
        readable: bool = True,
    ) -> None:
        self.settings = room, estimate, results, turns, readable
        self.messages: tuple[Message, ...] = ()
        self.active = False
        self.tokens = self.cleared = self.removed = 0
        self._room, self._estimate = room, estimate
        self._results, self._turns, self._readable = results, turns, readable
        self._shown: list[Message | None] = []  # None for those that are removed
        self._sizes: list[int] = []
        self._present: list[Message] = []  # those of `_shown` that are not removed
        self._first_numbers: dict[int, int] = {}  # by the index of a message with results
        self._places: list[tuple[int, int]] = []  # of each result: its message, its index in it
        self._turn_starts: list[int] = []
        self._cut_places: set[int] = set()
        self._replaced = 0  # results in messages before this index are replaced
        self._dropped = 0  # turns that are removed
        self._folded = 0  # calls in messages before this index are removed
        self._folded_results = 0
        self._noted: int | None = None  # the message that says that calls are removed

    def show(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Add those of *messages* that are new, and return what is shown of all.

        Args:
            messages: The conversation, which begins with the messages so far.
        """
        self.messages = messages
        for at in range(len(self._shown), len(messages)):
            message = self.messages[at]
            size = self._estimate(message)
            self._shown.append(message)
            self._sizes.append(size)
            self.tokens += size
            if isinstance(message, ToolResponseMessage):
                self._first_numbers[at] = len(self._places) + 1
                self._places += [
                    (at, index)
                    for index, response in enumerate(message.responses)
                    # So that both clients have the same numbers.
                    if HANDOFF not in response.metadata
                ]
                if self.active:
                    self._cut(at)
            elif begins_turn(self.messages, at) and CORRECTION not in message.metadata:
                self._turn_starts.append(at)
            self._present.append(self._shown[at] or message)
            unanswered = isinstance(message, AssistantMessage) and message.tool_calls
            if self.tokens > self._room and not unanswered:
                self._shorten(at)
        return tuple(self._present)

    def continues(self, messages: tuple[Message, ...]) -> bool:
        """Return whether *messages* begin with the messages so far."""
        return messages[: len(self.messages)] == self.messages

    def _shorten(self, at: int) -> None:
        """Leave out enough, because the messages up to index *at* exceed the room."""
        self.active = True
        if at in self._first_numbers:
            self._cut(at)
        # The tokens of what cannot be left out.
        start = self._turn_starts[-1] if self._turns and self._turn_starts else 0
        base = sum(
            size
            for at, (message, size) in enumerate(zip(self._shown, self._sizes, strict=True))
            if isinstance(message, SystemMessage)
            or (at >= start and message is not None and not self._is_tool_round(message))
        )
        quarter = max(self._room - base, 0) // 4
        # More is left out than has to be, so that the beginning of the prompts rarely changes.
        half, much = base + 2 * quarter, base + 3 * quarter
        self._replace(half, _KEPT_RESULTS)
        if self.tokens > much and self._turns:
            self._drop_turns(half)
        if self.tokens > much:
            self._replace(half, 1)
        if self.tokens > much:
            self._fold(base + quarter)
        if self.tokens > self._room:
            # Last, and no more than has to be: the model may not have read the newest results.
            self._replace(self._room, 0)
        self._present = [message for message in self._shown if message is not None]

    def _is_tool_round(self, message: Message) -> bool:
        if not self._results:
            return False
        called = isinstance(message, AssistantMessage) and bool(message.tool_calls)
        return called or isinstance(message, ToolResponseMessage)

    def _show(self, at: int, message: Message | None) -> None:
        """Show *message* in place of the one at *at*, or nothing."""
        before, complete = self._shown[at], self.messages[at]
        size = 0 if message is None else self._estimate(message)
        self.tokens += size - self._sizes[at]
        self._shown[at], self._sizes[at] = message, size
        if before is not None:
            self.cleared -= before is not complete
            self.removed += message is None
        self.cleared += message is not None and message is not complete

    # --- tool results -----------------------------------------------------------------------

    def _replace(self, target: int, kept: int) -> None:
        """Replace the oldest results until *target* is reached, except the newest *kept*."""
        if not self._results:
            return
        places = list(self._first_numbers)
        for at in places[bisect_left(places, self._replaced) : len(places) - kept]:
            if self.tokens <= target:
                return
            self._replaced = at + 1
            if self._shown[at] is not None:
                self._show(at, self._as_shown(at))

    def _cut(self, at: int) -> None:
        """Cut the results at *at* that are larger than their share."""
        if self._results:
            self._cut_places.add(at)
            self._show(at, self._as_shown(at))

    def _as_shown(self, at: int) -> Message:
        """Return the message with results at *at* as it is shown, unless it is removed."""
        message = self.messages[at]
        assert isinstance(message, ToolResponseMessage)  # noqa: S101
        share = self._share(len(message.responses)) if at in self._cut_places else self._room
        number, responses = self._first_numbers[at], list(message.responses)
        for index, each in enumerate(responses):
            if HANDOFF in each.metadata:
                continue
            if at < self._replaced:
                text = f"[Result {number}, {len(each.data):,} characters, is left out to save space"
                if self._readable:
                    text += f'; {READ_RESULT}({{"result": {number}}}) returns it'
                if len(text) + 2 >= len(each.data) and not each.media:
                    responses[index] = each
                else:
                    responses[index] = replace(each, data=f"{text}.]", media=())
            else:
                responses[index] = self._head(each, number, share)
            number += 1
        if at == self._noted:
            note = f"[{self._folded_results:,} earlier results and their calls are left out"
            note += f"; {READ_RESULT} searches them.]" if self._readable else ".]"
            responses[0] = replace(responses[0], data=f"{note}\n{responses[0].data}")
        if all(one is other for one, other in zip(responses, message.responses, strict=True)):
            return message
        return message.mutate(responses=responses)

    def _head(self, response: ToolResponse, number: int, share: int) -> ToolResponse:
        """Return *response*, cut if it is larger than its share of tokens."""
        end = self._length(response, share)
        if end >= len(response.data):
            return response
        text = f"\n[Cut after {end:,} of {len(response.data):,} characters"
        if self._readable:
            text += f'; {READ_RESULT}({{"result": {number}, "start": {end}}}) continues'
        return replace(response, data=f"{response.data[:end]}{text}.]")

    def _share(self, count: int = 1) -> int:
        """Return how many tokens each of *count* parallel results may have."""
        return max(min(self._room // _SHARES, self._room // 2 // count), _LEAST_SHARE)

    def _length(self, response: ToolResponse, share: int) -> int:
        """Return how many characters of *response* fit into *share* tokens."""
        end = len(response.data)
        while end:
            head = replace(response, data=response.data[:end], media=())
            size = self._estimate(ToolResponseMessage([head]))
            if size <= share:
                break
            if end == len(response.data):
                # Once the result is cut, the text that says how to read on needs room, too.
                share -= _HINT
            end = end * share // size
        return end

    # --- messages ---------------------------------------------------------------------------

    def _drop_turns(self, target: int) -> None:
        """Remove the oldest turns until *target* is reached, except the current one."""
        while self.tokens > target and self._dropped + 1 < len(self._turn_starts):
            first = self._turn_starts[self._dropped] if self._dropped else 0
            self._dropped += 1
            for at in range(first, self._turn_starts[self._dropped]):
                if not isinstance(self._shown[at], SystemMessage | None):
                    self._show(at, None)

    def _fold(self, target: int) -> None:
        """Remove the oldest tool calls until *target* is reached, except the last ones."""
        if not self._results or not self._first_numbers:
            return
        last = next(reversed(self._first_numbers))
        places = [at for at in self._first_numbers if at > self._folded]
        for at in places:
            if self.tokens <= target or at == last:
                break
            called, results = self._shown[at - 1], self._shown[at]
            if isinstance(called, AssistantMessage) and isinstance(results, ToolResponseMessage):
                self._folded_results += len(results.responses)
                self._show(at - 1, None)
                self._show(at, None)
            self._folded = at
        noted = next((at for at in places if at > self._folded), None)
        if noted is not None and self._folded_results and noted != self._noted:
            self._noted = noted
            self._show(noted, self._as_shown(noted))

    # --- complete results -------------------------------------------------------------------

    def read(self, number: int, start: int = 0) -> str | None:
        """Return result *number* from character *start* on, as much as may be shown at once.

        Returns:
            The text, with a hint if there is more; None if there is no such result.
        """
        if not 1 <= number <= len(self._places):
            return None
        response = self._response(number)
        start = min(max(start, 0), len(response.data))
        rest = replace(response, data=response.data[start:])
        length = self._length(rest, self._share())
        end = start + length
        if end >= len(response.data):
            return rest.data
        return (
            f"{rest.data[:length]}\n[Characters {start:,} to {end:,} of {len(response.data):,};"
            f' {READ_RESULT}({{"result": {number}, "start": {end}}}) continues.]'
        )

    def search(self, query: str, number: int | None = None) -> str:
        """Return where results contain *query*, in any case, or else all of its words together.

        Args:
            query: A word or phrase.
            number: The only result to search, or None for all.
        """
        known = range(1, len(self._places) + 1)
        numbers = [
            n for n in known if number in (None, n) and self._response(n).name != READ_RESULT
        ]
        found = self._find(numbers, [query]) or self._find(numbers, query.split())
        if not found:
            return f"Nothing found for {query!r}."
        lines: list[str] = []
        room = (self._share() - _HINT) * 4
        for n, start in found[:_FOUND]:
            text = self._response(n).data[max(start - _AROUND, 0) : start + _AROUND]
            line = f"Result {n} of {self._call_of(n)}, character {start}: {text}"
            room -= len(line.encode(errors="replace"))
            if lines and room < 0:
                break
            lines.append(line)
        if len(found) > len(lines):
            lines.append("There is more; search for something more specific, or in one result.")
        return "\n".join(lines)

    def _find(self, numbers: Sequence[int], words: Sequence[str]) -> list[tuple[int, int]]:
        """Return the first places at which results contain all *words*: number, character."""
        found: list[tuple[int, int]] = []
        lower = sorted((word.lower() for word in words), key=len, reverse=True)
        for number in numbers if lower else ():
            text = _lower(self._response(number).data)
            start = text.find(lower[0])
            while start >= 0:
                around = text[max(start - _AROUND, 0) : start + _AROUND]
                if all(word in around for word in lower[1:]):
                    found.append((number, start))
                    if len(found) > _FOUND:
                        return found
                start = text.find(lower[0], start + _AROUND)
        return found

    def _response(self, number: int) -> ToolResponse:
        at, index = self._places[number - 1]
        message = self.messages[at]
        assert isinstance(message, ToolResponseMessage)  # noqa: S101
        return message.responses[index]

    def _call_of(self, number: int) -> str:
        """Return the call that result *number* belongs to, for a model."""
        at, _ = self._places[number - 1]
        response, before = self._response(number), self.messages[at - 1] if at else None
        calls: tuple[ToolCall, ...] = ()
        if isinstance(before, AssistantMessage):
            calls = before.tool_calls
        arguments = next((call.arguments for call in calls if call.id == response.id), "")
        return f"{response.name}({arguments[:_LONGEST_ARGUMENTS]})"


def _lower(text: str) -> str:
    """Return *text* in lower case, if each character keeps its place."""
    lower = text.lower()
    return lower if len(lower) == len(text) else text
