"""Asks a decision model which tools help."""

from collections.abc import Mapping
from itertools import islice

from chatclient.chat.template import PromptTemplate
from chatclient.decisions.call import ask_decision
from chatclient.decisions.model import DecisionInput, DecisionModel, DecisionRequest
from chatclient.decisions.questions import check_probability
from chatclient.extend import check_number, check_type, require_placeholders
from chatclient.runtime.runtime import Runtime

TOOL_QUESTION = (
    'Would the tool "{name}" help with the task in the input? The tool does this: {description}'
)
"""The question about each tool."""


class ToolQuestions:
    """Asks a decision model a yes/no question about each tool.

    Args:
        model: The decision model.
        question: The question, with `{name}` and possibly `{description}`.
        min_probability: The probability of yes from which a tool fits.
        tools_per_request: The maximum number of tools in one request; None for all in one.

    Raises:
        UsageError: A number is out of its range.
        WrongTypeError: *model* is no decision model.
        TemplateError: The question lacks `{name}`.
    """

    def __init__(
        self,
        model: DecisionModel,
        question: str,
        min_probability: float,
        tools_per_request: int | None,
    ) -> None:
        check_type("a decision model", model, DecisionModel, "of a chat model: ChatDecisionModel")
        check_probability("min_probability", min_probability)
        if tools_per_request is not None:
            check_number("tools_per_request", tools_per_request, least=1)
        self.model = model
        self._template = PromptTemplate(question, {"description": ""})
        require_placeholders(self._template, "name")
        self._min_probability = min_probability
        self._tools_per_request = tools_per_request

    async def fitting(
        self, input: DecisionInput, tools: Mapping[str, str], runtime: Runtime
    ) -> list[tuple[float, str]]:
        """Return the probabilities and names of the *tools* that fit, the best first.

        Args:
            input: What the tools are for.
            tools: The descriptions of the tools by name.
            runtime: The runtime of the request.

        Raises:
            ProviderError: The model failed, or refused to answer.
        """
        found: list[tuple[float, str]] = []
        remaining = iter(tools.items())
        while batch := dict(islice(remaining, self._tools_per_request)):
            questions = {
                name: self._template.render(name=name, description=about)
                for name, about in batch.items()
            }
            response = await ask_decision(self.model, DecisionRequest(input, questions), runtime)
            found += [(response.yes_no(name).probability, name) for name in batch]
        fitting = [pair for pair in found if pair[0] >= self._min_probability]
        return sorted(fitting, key=lambda pair: (-pair[0], pair[1]))
