"""`ToolSearchToolCallingAdvisor`: a tool loop that sends only the tools the model has found."""

import copy
import functools
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal, Self, TypedDict, Unpack
from uuid import uuid4

from chatclient._internal.checks import (
    check_callable,
    check_choice,
    check_method,
    check_number,
    check_type,
    names,
)
from chatclient._internal.frozen import EMPTY, merged
from chatclient._internal.logging import get_logger
from chatclient.advisors.memory.advisors import LoadedMemory
from chatclient.advisors.tool_loop.advisor import (
    EligibilityChecker,
    ToolCallingAdvisor,
)
from chatclient.advisors.tool_search.session import (
    FOUND_TOOLS,
    Describe,
    FoundTools,
    RequestToolsCache,
    SearchSession,
    SessionRegistry,
    describe,
)
from chatclient.advisors.tool_search.tool import MAX_RESULTS, SEARCH_TOOL, ToolSearchTool
from chatclient.chain.calls_by_name import CALL_TOOL, CallTool
from chatclient.chain.chain import ChatClientRequest, ChatClientResponse, Next
from chatclient.chain.params import TOOL_SEARCH_ROLES
from chatclient.chat.messages import Message
from chatclient.chat.model import ChatModel
from chatclient.chat.response import ChatResponse
from chatclient.chat.tool import CONVERSATION_ID, ToolCallback
from chatclient.chat.turn import RefreshTools, Turn
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING, ON_LOOP, Runtime
from chatclient.tools.execution.manager import ToolCallingManager
from chatclient.tools.search.index import (
    LruEvictionStrategy,
    ToolIndex,
    ToolIndexEvictionStrategy,
    ToolSearchRequest,
    ToolSearchResponse,
    find_checked,
)
from chatclient.tools.search.keyword import KeywordToolIndex, ProviderToolIndex

SYSTEM_MESSAGE_SUFFIX = (
    "Only some of your tools are listed. Whenever a request needs anything that the listed tools "
    f"cannot do, first call {SEARCH_TOOL} with a short description of it, then call the tools "
    "that it finds."
)
"""The instruction about the search tool that is appended to the system message."""

_CALL_TOOL_SUFFIX = f"{SYSTEM_MESSAGE_SUFFIX[:-1]}, with {CALL_TOOL}."

Disclosure = Literal["tools", "in_conversation"]
"""Where the model sees the tools that it has found: among the tools of the request, or in the
results of its searches."""

_ATTEMPTS = 3  # searches of a session whose index other requests change

log = get_logger(__name__)


class ToolLoopOptions(TypedDict, total=False):
    """The parameters of `ToolCallingAdvisor`."""

    manager: ToolCallingManager | None
    order: int
    conversation_history: bool | None
    eligibility: EligibilityChecker
    reset_tool_choice: bool
    stream_tool_call_responses: bool


class ToolSearchToolCallingAdvisor(ToolCallingAdvisor):
    """A tool loop in which the model searches for tools.

    The first round sends one tool, `toolSearchTool`, and those that are always visible. Tools that
    the model finds are appended from the next round on, for the rest of the conversation.

    Providers cache tools before messages, so each tool that is found makes the provider read the
    conversation again at its full price. With `disclosure="in_conversation"`, found tools are not
    sent: their definitions are in the result of the search, and the model calls them through a
    second tool, `callTool`. Everything but the model sees calls of the tools themselves.

    The names of found tools are stored in this process by session id, and in the metadata of each
    answer, so that a memory makes them available to other processes. They are also read from the
    results of searches in the messages. Tools are indexed at the first search of a session.

    Args:
        tool_index: The index that finds the tools; default: by keywords. With a
            `ProviderToolIndex`, the provider of the model finds them, if it can.
        max_results: The number of results of a search if the model does not pass one; None leaves
            it to the index.
        disclosure: Where the model sees the tools that it has found: `tools` or `in_conversation`.
        system_message_suffix: The instruction about the search tool; empty for none.
        reference_tool_name_accumulation: Whether tools stay visible once found. If False, only
            the results of the last search are visible.
        session_id_key_name: The key in the request's context of the session id; default: that of
            the conversation id. A request without an id does not share its session.
        eviction_strategy: Decides which sessions are evicted; default: all but the 1,000 used most
            recently.
        threshold: With fewer searchable tools than this, all tools that the user may use are
            sent, without a search tool.
        always_visible: The names of tools that are always sent, in addition to those declared
            with `@tool(always_visible=True)`.
        run_undiscovered: Whether a tool of the request is run if the model calls it without having
            found it. If False, the model gets the error that there is no such tool.
        describe: Returns the reference of a tool for the index, with categories and roles.
        **loop: See `ToolCallingAdvisor`.

    Raises:
        UsageError: A number is out of range, or an argument has the wrong type.
    """

    def __init__(  # noqa: PLR0913 - settings with defaults
        self,
        tool_index: ToolIndex | None = None,
        *,
        disclosure: Disclosure = "tools",
        max_results: int | None = MAX_RESULTS,
        system_message_suffix: str | None = None,
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
            check_type("a tool index", tool_index, ToolIndex, hint)
        eviction_strategy = (
            LruEvictionStrategy() if eviction_strategy is None else eviction_strategy
        )
        check_method("an eviction strategy", eviction_strategy, "on_access")
        check_number("threshold", threshold)
        check_choice("disclosure", disclosure, Disclosure)
        by_name = disclosure == "in_conversation"
        if system_message_suffix is None:
            system_message_suffix = _CALL_TOOL_SUFFIX if by_name else SYSTEM_MESSAGE_SUFFIX
        check_type("system_message_suffix", system_message_suffix, str, "an empty text is none")
        check_type("session_id_key_name", session_id_key_name, str)
        check_callable("describe", describe, takes=("callback",))
        self.tool_index = KeywordToolIndex() if tool_index is None else tool_index
        self.max_results = max_results
        self.system_message_suffix = system_message_suffix.strip()
        self.accumulates = reference_tool_name_accumulation
        self.session_id_key_name = session_id_key_name
        self.params = (TOOL_SEARCH_ROLES, session_id_key_name)
        self.eviction_strategy = eviction_strategy
        self.threshold = threshold
        self.run_undiscovered = run_undiscovered
        self._model: ChatModel | None = None
        self._call_tool = CallTool() if by_name else None
        # Shared with the copies that `in_chain` makes.
        self._request_tools = RequestToolsCache(describe, always_visible)
        self._sessions = SessionRegistry()

    def before_model(self, model: ChatModel) -> Self:
        """Return the advisor for a chain around *model*."""
        adapted = copy.copy(self)
        adapted._model = model  # noqa: SLF001 - of a copy
        return adapted

    def evict_session(self, session_id: str) -> None:
        """Remove the index and the found tools of a session."""
        drive(self._remove(session_id, BLOCKING))

    async def aevict_session(self, session_id: str) -> None:
        """Remove a session; see `evict_session`."""
        await self._remove(session_id, ON_LOOP)

    # --- the loop ---------------------------------------------------------------------------

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the final response of the loop."""
        if request.prompt.options.internal_tool_execution_enabled is False:
            # The application runs the tools itself; roles still restrict them.
            request = self._without_search(request)
        return await super().__call__(request, call_next)

    async def initialize_loop(self, request: ChatClientRequest) -> ChatClientRequest:
        """Return the request with the search tool instead of most tools, if there are enough."""
        prompt = request.prompt
        session = self._create_session(request)
        if session is None:
            # An earlier run of the loop in the same turn may have left a session.
            request.turn.state.pop(self, None)
            return self._without_search(request)
        if session.id:
            await self._record_access(session.id, request.runtime)
        options = prompt.options.mutate(tool_callbacks=session.visible)
        prompt = prompt.with_options(options)
        suffix = self.system_message_suffix
        if suffix and session.provider_search is None:
            prompt = prompt.augment_system_message(lambda text: _with_suffix(text, suffix))
        request.turn.state[self] = session
        return request.mutate(prompt=prompt)

    def unoffered_tools(self, request: ChatClientRequest) -> Mapping[str, ToolCallback]:
        """Return all tools of the session, visible or not, unless they must be found first."""
        session = self._session(request.turn)
        if session is None:
            return EMPTY
        if self.run_undiscovered:
            return session.tools
        return EMPTY if session.call_tool is None else FoundTools(session)

    async def before_call(self, request: ChatClientRequest) -> ChatClientRequest:
        """Return the request with all tools found so far."""
        session = self._session(request.turn)
        if session is None:
            return request
        if session.update(request.prompt.messages) and session.id:
            self._sessions.add_found(session.id, session.names, accumulate=self.accumulates)
            await self._record_update(session.id, request.runtime)
        if session.refresh is not None:
            messages = (*request.earlier, *request.prompt.messages)
            callbacks = await session.refresh(messages, request.runtime)
            session.set_tools(self._request_tools.of(tuple(callbacks)))
        options = session.with_visible_tools(request.prompt.options)
        if options is request.prompt.options:
            return request
        return request.mutate(prompt=request.prompt.with_options(options))

    async def finalize_loop(self, response: ChatClientResponse) -> ChatClientResponse:
        """Return the response with the names of the found tools in the answer's metadata."""
        session = self._session(response.turn)
        if session is None or not session.names:
            return response
        answer = _with_found_tools(response.chat_response, session.names)
        return response.mutate(chat_response=answer)

    # --- sessions ---------------------------------------------------------------------------

    def _create_session(self, request: ChatClientRequest) -> SearchSession | None:
        """Return the session of *request*, or None if there are too few tools to search."""
        options, context = request.prompt.options, request.context
        threshold = max(self.threshold, 1)
        if options.tool_callbacks is None or len(options.tool_callbacks) < threshold:
            return None
        if not isinstance(self.tool_index, ProviderToolIndex) or self._model is None:
            provider_search = None
        else:
            search = self.tool_index.server_tool
            provider_search = search if self._model.has_server_tool(search, options) else None
        session = SearchSession(
            str(context.get(self.session_id_key_name) or ""),
            self._request_tools.of(tuple(options.tool_callbacks)),
            _roles_of(request),
            accumulates=self.accumulates,
            refresh=request.turn.part.refresh_tools,
            provider_search=provider_search,
            call_tool=self._call_tool if provider_search is None else None,
        )
        if session.hidden_count < threshold:
            return None
        session.search = ToolSearchTool(
            functools.partial(self._find, session),
            session.tools,
            categories=session.all_tools.categories_of(session.tools),
            roles=session.roles,
            max_results=self.max_results,
            by_name=session.call_tool is not None,
        )
        # A memory inside the loop has loaded the history, which is not in the prompt yet.
        states = request.turn.state.values()
        loaded = (each.history for each in states if isinstance(each, LoadedMemory))
        messages = (*itertools.chain.from_iterable(loaded), *request.prompt.messages)
        session.load(self._sessions.found_names(session.id), messages, options.tool_choice)
        return session

    def _without_search(self, request: ChatClientRequest) -> ChatClientRequest:
        """Return *request* with all tools that its user may use, and no search tool."""
        options, roles = request.prompt.options, _roles_of(request)
        callbacks = tuple(options.tool_callbacks or ())
        permitted = self._permitted(callbacks, roles)
        if len(permitted) < len(callbacks):
            prompt = request.prompt.with_options(options.mutate(tool_callbacks=permitted))
            request = request.mutate(prompt=prompt)
        return request

    def refresh_tools(self, request: ChatClientRequest) -> RefreshTools | None:
        """Return the function that lists the tools that the user may use.

        With a session, `before_call` asks tool providers in every round, instead of the loop.
        """
        refresh = super().refresh_tools(request)
        if refresh is None or self._session(request.turn) is not None:
            return None
        roles = _roles_of(request)

        async def refresh_permitted(
            messages: Sequence[Message], runtime: Runtime
        ) -> Sequence[ToolCallback]:
            return self._permitted(tuple(await refresh(messages, runtime)), roles)

        return refresh_permitted

    def _session(self, turn: Turn) -> SearchSession | None:
        """Return the session of this run of the loop, or None if it does not search."""
        session: SearchSession | None = turn.state.get(self)
        return session

    def _permitted(
        self, callbacks: tuple[ToolCallback, ...], roles: frozenset[str]
    ) -> tuple[ToolCallback, ...]:
        tools = self._request_tools.of(callbacks)
        permitted = tools.permitted(roles)
        return callbacks if permitted is tools.by_name else tuple(permitted.values())

    async def _find(
        self, session: SearchSession, request: ToolSearchRequest, runtime: Runtime
    ) -> ToolSearchResponse:
        """Search the tools of a session, and index them first if necessary.

        A session without an id uses the digest of its tools as index id, and shares the index with
        all such sessions that have the same tools.
        """
        index_id = session.id or session.all_tools.key
        if not session.id:
            await self._record_access(index_id, runtime)
        for _attempt in range(_ATTEMPTS):
            response, is_valid = await self._try_find(index_id, session, request, runtime)
            if is_valid:
                return response
        # No other request changes the index of an id that is not shared.
        index_id = f"{session.all_tools.key}-{uuid4().hex}"
        try:
            await self.tool_index.put(index_id, session.all_tools.references, runtime)
            return await find_checked(
                self.tool_index, replace(request, session_id=index_id), runtime
            )
        finally:
            # Shielded: no other request knows this id, so the index would never be dropped.
            await runtime.shielded(self.tool_index.drop(index_id, runtime))

    async def _try_find(
        self, index_id: str, session: SearchSession, request: ToolSearchRequest, runtime: Runtime
    ) -> tuple[ToolSearchResponse, bool]:
        """Index the tools and search them; also return whether the index stayed unchanged.

        A concurrent request of the session may have indexed other tools, or the session may have
        been evicted.
        """
        references = session.all_tools.references
        with self._sessions.updating(index_id, references) as tools:
            await self.tool_index.put(index_id, references, runtime)
        await self._record_update(index_id, runtime)
        response = await find_checked(
            self.tool_index, replace(request, session_id=index_id), runtime
        )
        return response, self._sessions.is_indexed(index_id, tools)

    async def _record_access(self, session_id: str, runtime: Runtime) -> None:
        """Record the access to a session, and evict the sessions that the strategy returns."""
        for other in self.eviction_strategy.on_access(session_id):
            await self._evict(other, runtime, keep_found=other == session_id)

    async def _record_update(self, session_id: str, runtime: Runtime) -> None:
        """Record the access to a session after data was stored for it.

        The session may have been evicted concurrently. Storing first and recording the access
        second, in the reverse order of `_remove`, ensures that the strategy tracks stored data.
        """
        for other in self.eviction_strategy.on_access(session_id):
            if other != session_id:
                await self._evict(other, runtime)

    async def _evict(self, session_id: str, runtime: Runtime, *, keep_found: bool = False) -> None:
        try:
            await self._remove(session_id, runtime, keep_found=keep_found)
        except Exception as error:  # noqa: BLE001 - must not fail the request of another session
            log.warning("tool index not cleared", session=session_id, error=repr(error))

    async def _remove(self, session_id: str, runtime: Runtime, *, keep_found: bool = False) -> None:
        self.eviction_strategy.on_removed(session_id)
        if not keep_found:
            self._sessions.remove_found(session_id)
        with self._sessions.updating(session_id, None):
            await self.tool_index.drop(session_id, runtime)


def _roles_of(request: ChatClientRequest) -> frozenset[str]:
    return names(request.context.get(TOOL_SEARCH_ROLES) or ())


def _with_suffix(text: str, suffix: str) -> str:
    if suffix in text:
        return text
    return f"{text}\n\n{suffix}" if text else suffix


def _with_found_tools(answer: ChatResponse, names: Sequence[str]) -> ChatResponse:
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
