"""Tool search in the tool loop: thousands of tools, a handful in the prompt."""

import functools
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypedDict, Unpack
from uuid import uuid4

from chatclient.advisors.request_tools import Describe, RequestToolsCache, describe
from chatclient.advisors.tool_calling import (
    EARLIER_MESSAGES,
    REFRESH_TOOLS,
    EligibilityChecker,
    RefreshTools,
    ToolCallingAdvisor,
)
from chatclient.advisors.tool_search_session import (
    FOUND_TOOLS,
    SearchMemories,
    SearchSession,
)
from chatclient.advisors.tool_search_tool import (
    MAX_RESULTS,
    SEARCH_TOOL,
    ToolSearchTool,
)
from chatclient.advisors.turns import Turn
from chatclient.chain import ChatClientRequest, ChatClientResponse, Next
from chatclient.checks import check_callable, check_kind, check_method, check_number, names
from chatclient.driving import drive
from chatclient.logs import get_logger
from chatclient.messages import Message
from chatclient.response import ChatResponse
from chatclient.runtime import BLOCKING, ON_LOOP, Runtime
from chatclient.tool import CONVERSATION_ID, ToolCallback
from chatclient.tools import ToolCallingManager
from chatclient.tools.search import (
    KeywordToolIndex,
    ToolIndex,
    ToolSearchRequest,
    ToolSearchResponse,
)
from chatclient.tools.search.eviction import LruEvictionStrategy, ToolIndexEvictionStrategy
from chatclient.tools.search.index import asked
from chatclient.values import EMPTY, merged, without

TOOL_SEARCH_ROLES = "tool_search_roles"
"""The key in a request's context of what the user is: a role, or several."""

SYSTEM_MESSAGE_SUFFIX = (
    "Only some of your tools are listed. Whenever a request needs anything that the listed tools "
    f"cannot do, first call {SEARCH_TOOL} with a short description of it, then call the tools "
    "that it finds."
)
"""What the model is told about the search at the end of the system text."""

_SESSION = "tool_search_session"  # in the context of a request within the loop
_ATTEMPTS = 3

log = get_logger(__name__)


class ToolLoopOptions(TypedDict, total=False):
    """What `ToolCallingAdvisor` takes."""

    manager: ToolCallingManager | None
    order: int
    conversation_history: bool | None
    eligibility: EligibilityChecker
    reset_tool_choice: bool
    stream_tool_call_responses: bool


class ToolSearchToolCallingAdvisor(ToolCallingAdvisor):
    """A tool loop whose model finds its tools by searching.

    The model is first told about one tool, `toolSearchTool`, and those always visible. What it
    finds is added to the tools of the next round and stays for the conversation: always at the
    end, so that what providers have cached of the prompt stays valid.

    Which tools a conversation has found is kept in this process by session id, in the metadata of
    each answer (so that a memory brings it to other processes), and in the results of searches
    among the messages. Tools are indexed when a session searches for the first time.

    Args:
        tool_index: Finds the tools; default: by keywords.
        max_results: How many tools a search finds when the model does not say; None leaves it to
            the index.
        system_message_suffix: What the model is told about the search; empty for nothing.
        reference_tool_name_accumulation: Whether tools stay visible once found. Without, only
            those of the last search are.
        session_id_key_name: The key in the request's context of the session's id; the
            conversation's as a rule. A request without one is a session of its own.
        eviction_strategy: Decides which sessions are forgotten; default: all but the 1,000 that
            were used last.
        threshold: Where fewer tools than this could be searched, all that the user may use are
            sent, and no search.
        always_visible: The names of tools that the model is always told about, beside those that
            say so themselves (`@tool(always_visible=True)`).
        run_undiscovered: Whether a tool of the request that the model calls without having found
            it is run. Without, the model is told that there is no such tool.
        describe: Says what the index is told about a tool, for categories and roles.
        **loop: See `ToolCallingAdvisor`.

    Raises:
        UsageError: A number is out of range, or something is of the wrong kind.
    """

    def __init__(
        self,
        tool_index: ToolIndex | None = None,
        *,
        max_results: int | None = MAX_RESULTS,
        system_message_suffix: str = SYSTEM_MESSAGE_SUFFIX,
        reference_tool_name_accumulation: bool = True,
        session_id_key_name: str = CONVERSATION_ID,
        eviction_strategy: ToolIndexEvictionStrategy | None = None,
        threshold: int = 8,
        always_visible: str | Collection[str] = (),
        run_undiscovered: bool = True,
        describe: Describe = describe,
        **loop: Unpack[ToolLoopOptions],
    ) -> None:
        super().__init__(**loop)
        if max_results is not None:
            check_number("max_results", max_results, least=1)
        if tool_index is not None:
            hint = "one of your own is a subclass with put, find and drop"
            check_kind("a tool index", tool_index, ToolIndex, hint)
        if eviction_strategy is not None:
            check_method("an eviction strategy", eviction_strategy, "on_access")
        check_number("threshold", threshold)
        check_kind("system_message_suffix", system_message_suffix, str, "an empty text is none")
        check_kind("session_id_key_name", session_id_key_name, str)
        check_callable("describe", describe)
        self.tool_index = tool_index or KeywordToolIndex()
        self.max_results = max_results
        self.system_message_suffix = system_message_suffix.strip()
        self.accumulates = reference_tool_name_accumulation
        self.session_id_key_name = session_id_key_name
        self.eviction_strategy = eviction_strategy or LruEvictionStrategy()
        self.threshold = threshold
        self.run_undiscovered = run_undiscovered
        # Shared with the copies that chains work with; see `in_chain`.
        self._request_tools = RequestToolsCache(describe, always_visible)
        self._memories = SearchMemories()

    def evict_session(self, session_id: str) -> None:
        """Forget a session: what it has indexed and what it has found."""
        drive(self._forget(session_id, BLOCKING))

    async def aevict_session(self, session_id: str) -> None:
        """Forget a session; see `evict_session`."""
        await self._forget(session_id, ON_LOOP)

    # --- the loop ---------------------------------------------------------------------------

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the final response of the loop."""
        if request.prompt.options.internal_tool_execution_enabled is False:
            # Nothing is searched, but roles count for whoever runs the tools, too.
            request = self._unsearched(request)
        return await super().__call__(request, call_next)

    async def initialize_loop(self, request: ChatClientRequest) -> ChatClientRequest:
        """Return the request with the search in place of most tools, if there are enough."""
        prompt = request.prompt
        session = self._session_of(request)
        if session is None:
            return self._unsearched(request)
        if session.id:
            await self._make_room(session.id, request.runtime)
        options = prompt.options.mutate(tool_callbacks=session.visible)
        prompt = prompt.with_options(options)
        suffix = self.system_message_suffix
        if suffix:
            prompt = prompt.augment_system_message(lambda text: _with_suffix(text, suffix))
        # Providers that want to be asked in every round are asked here, not by the loop.
        return request.mutate(prompt=prompt, context={_SESSION: session, REFRESH_TOOLS: None})

    def unoffered_tools(self, request: ChatClientRequest) -> Mapping[str, ToolCallback]:
        """Return the tools that are not visible yet."""
        session: SearchSession | None = request.context.get(_SESSION)
        return session.tools if session is not None and self.run_undiscovered else EMPTY

    async def before_call(self, request: ChatClientRequest) -> ChatClientRequest:
        """Return the request with all tools found so far."""
        session: SearchSession | None = request.context.get(_SESSION)
        if session is None:
            return request
        if session.learn(request.prompt.messages) and session.id:
            self._memories.keep(session.id, session.names, accumulate=self.accumulates)
            await self._still_used(session.id, request.runtime)
        if session.refresh is not None:
            said = (*request.context.get(EARLIER_MESSAGES, ()), *request.prompt.messages)
            callbacks = await session.refresh(said, request.runtime)
            session.change(self._request_tools.of(tuple(callbacks)))
        options = session.offered(request.prompt.options)
        if options is request.prompt.options:
            return request
        return request.mutate(prompt=request.prompt.with_options(options))

    async def finalize_loop(self, response: ChatClientResponse) -> ChatClientResponse:
        """Return the response with what the conversation has found in the answer's metadata."""
        session: SearchSession | None = response.context.get(_SESSION)
        if session is None:
            return response
        answer = response.chat_response
        if session.names:
            answer = _noted(answer, session.names)
        return ChatClientResponse(answer, without(response.context, _SESSION, REFRESH_TOOLS))

    # --- sessions ---------------------------------------------------------------------------

    def _session_of(self, request: ChatClientRequest) -> SearchSession | None:
        """Return what is known of the session of *request*; None if there is no need to search."""
        options, context = request.prompt.options, request.context
        least = max(self.threshold, 1)
        if options.tool_callbacks is None or len(options.tool_callbacks) < least:
            return None
        session = SearchSession(
            str(context.get(self.session_id_key_name) or ""),
            self._request_tools.of(tuple(options.tool_callbacks)),
            _roles_in(request),
            accumulates=self.accumulates,
            refresh=context.get(REFRESH_TOOLS),
        )
        if session.hidden_count < least:
            return None
        session.search = ToolSearchTool(
            functools.partial(self._find, session),
            session.tools,
            categories=session.all_tools.categories_among(session.tools),
            roles=session.roles,
            max_results=self.max_results,
        )
        # Memory inside the loop has told its other half, outside, what was said before.
        told = (turn.history for turn in context.values() if isinstance(turn, Turn))
        messages = (*itertools.chain.from_iterable(told), *request.prompt.messages)
        session.begin(self._memories.names_of(session.id), messages, options.tool_choice)
        return session

    def _unsearched(self, request: ChatClientRequest) -> ChatClientRequest:
        """Return *request* with all tools that its user may use."""
        options, roles = request.prompt.options, _roles_in(request)
        callbacks = tuple(options.tool_callbacks or ())
        admitted = self._admitted(callbacks, roles)
        if len(admitted) < len(callbacks):
            prompt = request.prompt.with_options(options.mutate(tool_callbacks=admitted))
            request = request.mutate(prompt=prompt)
        refresh: RefreshTools | None = request.context.get(REFRESH_TOOLS)
        if refresh is None:
            return request

        async def refreshed(said: Sequence[Message], runtime: Runtime) -> Sequence[ToolCallback]:
            return self._admitted(tuple(await refresh(said, runtime)), roles)

        return request.mutate(context={REFRESH_TOOLS: refreshed})

    def _admitted(
        self, callbacks: tuple[ToolCallback, ...], roles: frozenset[str]
    ) -> tuple[ToolCallback, ...]:
        tools = self._request_tools.of(callbacks)
        admitted = tools.admitted(roles)
        return callbacks if admitted is tools.by_name else tuple(admitted.values())

    async def _find(
        self, session: SearchSession, request: ToolSearchRequest, runtime: Runtime
    ) -> ToolSearchResponse:
        """Search a session's tools, which are indexed if they are not already.

        A session without an id is searched under the key of its tools, which all such sessions
        with the same ones have in common.
        """
        index_id = session.id or session.all_tools.key
        if not session.id:
            await self._make_room(index_id, runtime)
        for _attempt in range(_ATTEMPTS):
            response, undisturbed = await self._find_as(index_id, session, request, runtime)
            if undisturbed:
                return response
        # Nobody disturbs a name that nobody else knows; the tools are indexed already.
        index_id = f"{session.all_tools.key}-{uuid4().hex}"
        try:
            await self.tool_index.put(index_id, session.all_tools.references, runtime)
            return await asked(self.tool_index, replace(request, session_id=index_id), runtime)
        finally:
            await runtime.shielded(self.tool_index.drop(index_id, runtime))

    async def _find_as(
        self, index_id: str, session: SearchSession, request: ToolSearchRequest, runtime: Runtime
    ) -> tuple[ToolSearchResponse, bool]:
        """Search under a name, and say whether it stood for the session's tools all the time.

        Another request of the session, with other tools, may have come in between, or somebody
        who forgets the session.
        """
        references = session.all_tools.references
        with self._memories.changing(index_id, references) as tools:
            await self.tool_index.put(index_id, references, runtime)
        await self._still_used(index_id, runtime)
        response = await asked(self.tool_index, replace(request, session_id=index_id), runtime)
        return response, self._memories.has(index_id, tools)

    async def _make_room(self, session_id: str, runtime: Runtime) -> None:
        """Take note that a session is used, and forget those whose time is over."""
        for other in self.eviction_strategy.on_access(session_id):
            await self._evict(other, runtime, used=other == session_id)

    async def _still_used(self, session_id: str, runtime: Runtime) -> None:
        """Take note of a session after something was kept for it.

        It may have been forgotten meanwhile. Keeping first and noting then, as opposed to
        `_forget`, makes sure that what is kept is known to the strategy.
        """
        for other in self.eviction_strategy.on_access(session_id):
            if other != session_id:
                await self._evict(other, runtime)

    async def _evict(self, session_id: str, runtime: Runtime, *, used: bool = False) -> None:
        try:
            await self._forget(session_id, runtime, used=used)
        except Exception as error:  # noqa: BLE001 - no business of the session that is used
            log.warning("tool index not cleared", session=session_id, error=repr(error))

    async def _forget(self, session_id: str, runtime: Runtime, *, used: bool = False) -> None:
        self.eviction_strategy.on_removed(session_id)
        if not used:  # what one in use has found is kept
            self._memories.forget(session_id)
        with self._memories.changing(session_id, None):
            await self.tool_index.drop(session_id, runtime)


def _roles_in(request: ChatClientRequest) -> frozenset[str]:
    return names(request.context.get(TOOL_SEARCH_ROLES) or ())


def _with_suffix(text: str, suffix: str) -> str:
    if suffix in text:
        return text
    return f"{text}\n\n{suffix}" if text else suffix


def _noted(answer: ChatResponse, names: Sequence[str]) -> ChatResponse:
    """Return *answer* with *names* in the metadata of its messages."""
    return replace(
        answer,
        generations=tuple(
            replace(
                g,
                output=g.output.mutate(metadata=merged(g.output.metadata, {FOUND_TOOLS: [*names]})),
            )
            for g in answer.generations
        ),
    )
