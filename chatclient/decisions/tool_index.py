"""A tool index that asks a decision model which tools fit."""

from collections.abc import Sequence
from time import perf_counter

from chatclient.decisions.model import DecisionModel
from chatclient.decisions.narrowing import TOOL_QUESTION, ToolQuestions
from chatclient.extend import check_number
from chatclient.runtime.runtime import Runtime
from chatclient.tools.search.index import (
    ToolIndex,
    ToolReference,
    ToolSearchRequest,
    ToolSearchResponse,
    as_response,
)
from chatclient.tools.search.segments import Catalogs


class DecisionToolIndex(ToolIndex):
    """Finds tools by a yes/no question about each one to a decision model.

    A search takes as long as the model needs for all tools, so it is for dozens of tools. If the
    model fails, the search fails.

    Args:
        model: The decision model.
        max_results: The number of results of a search without a limit.
        min_probability: The probability of yes from which a tool is found.
        tools_per_request: The maximum number of tools in one request; None for all in one.
        question: The question, with `{name}` and possibly `{description}`; the input is the query.

    Raises:
        UsageError: A number is out of its range.
        WrongTypeError: *model* is no decision model.
        TemplateError: The question lacks `{name}`.
    """

    def __init__(
        self,
        model: DecisionModel,
        *,
        max_results: int = 5,
        min_probability: float = 0.5,
        tools_per_request: int | None = None,
        question: str = TOOL_QUESTION,
    ) -> None:
        check_number("max_results", max_results, least=1)
        self._questions = ToolQuestions(model, question, min_probability, tools_per_request)
        self._max_results = max_results
        self._catalogs: Catalogs[None] = Catalogs()

    async def put(
        self,
        session_id: str,
        references: Sequence[ToolReference],
        runtime: Runtime,  # noqa: ARG002 - does not wait
    ) -> None:
        """Set the tools of a session."""
        self._catalogs.assign(session_id, references)

    async def find(self, request: ToolSearchRequest, runtime: Runtime) -> ToolSearchResponse:
        """Search the tools of one session; a blank query finds nothing.

        Raises:
            ProviderError: The model failed, or refused to answer.
        """
        started = perf_counter()
        catalog = self._catalogs.of(request.session_id)
        views = () if catalog is None else catalog.views
        references = {
            reference.tool_name: reference
            for view in views
            for _, reference in view.live()
            if request.admits(reference)
        }
        found: list[tuple[float, ToolReference]] = []
        if request.query.strip():
            tools = {name: reference.summary for name, reference in references.items()}
            fitting = await self._questions.fitting(request.query, tools, runtime)
            found = [(probability, references[name]) for probability, name in fitting]
        limit = request.limit(self._max_results)
        return as_response("decision", request, found[:limit], len(found), started)

    async def drop(self, session_id: str, runtime: Runtime) -> None:  # noqa: ARG002
        """Remove the tools of a session."""
        self._catalogs.remove(session_id)
