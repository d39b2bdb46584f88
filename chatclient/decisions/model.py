"""The contract of a decision model, which answers questions with probabilities."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from chatclient._internal.frozen import deep_frozen
from chatclient.chat.response import NO_USAGE, Usage
from chatclient.chat.stored_values import register_stored_type
from chatclient.decisions.questions import (
    ChoiceAnswer,
    ChoiceQuestion,
    DecisionAnswer,
    DecisionQuestion,
    DecisionRefusal,
    ScoreAnswer,
    ScoreQuestion,
    YesNoAnswer,
    YesNoQuestion,
    dump_fields,
)
from chatclient.errors import ContentFilterError, InvalidResponseError, UsageError, WrongTypeError
from chatclient.extend import (
    BLOCKING,
    EMPTY,
    ON_LOOP,
    Closeable,
    FrozenDict,
    check_type,
    drive,
    dumps,
    freeze_fields,
)
from chatclient.runtime.runtime import Runtime, within_callers_deadline

T = TypeVar("T", YesNoAnswer, ChoiceAnswer, ScoreAnswer)

DecisionInput = str | Mapping[str, Any]
"""What questions are about: a text, or plain JSON values by name."""

DecisionQuestions = Mapping[str, DecisionQuestion | str]
"""Questions by name; a text is a `YesNoQuestion`."""


@dataclass(frozen=True, slots=True)
class DecisionRequest:
    """Questions about an input.

    Attributes:
        input: The input.
        questions: The questions by name.

    Raises:
        UsageError: The input is empty, there is no question, or a name is blank.
        WrongTypeError: The input contains other objects than JSON has, or something else than a
            question is asked.
    """

    input: DecisionInput
    questions: DecisionQuestions

    def __post_init__(self) -> None:
        check_type("the input of a decision", self.input, (str, Mapping))
        if not (self.input.strip() if isinstance(self.input, str) else self.input):
            msg = "the input of a decision must not be empty"
            raise UsageError(msg)
        if not isinstance(self.input, str):
            _check_plain(self.input, "input")
            object.__setattr__(self, "input", deep_frozen(self.input))
        check_type("questions", self.questions, Mapping, 'write {"name": YesNoQuestion("...")}')
        if not self.questions:
            msg = "there is no question to answer; give at least one"
            raise UsageError(msg)
        questions = {_checked_name(name): _question(it) for name, it in self.questions.items()}
        object.__setattr__(self, "questions", FrozenDict(questions))

    @property
    def text(self) -> str:
        """The input as a text; values by name as JSON."""
        return self.input if isinstance(self.input, str) else dumps(self.input).decode()

    @property
    def typed_questions(self) -> Mapping[str, DecisionQuestion]:
        """The questions by name, texts as `YesNoQuestion`s."""
        return {name: _question(question) for name, question in self.questions.items()}


def _question(given: object) -> DecisionQuestion:
    if isinstance(given, str):
        return YesNoQuestion(given)
    if not isinstance(given, YesNoQuestion | ChoiceQuestion | ScoreQuestion):
        msg = (
            "a question must be a YesNoQuestion, a ChoiceQuestion, a ScoreQuestion or a text, not"
            f" {given!r}"
        )
        raise WrongTypeError(msg)
    return given


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not name.strip():
        msg = f"the name of a question must be a text that is not blank, not {name!r}"
        raise UsageError(msg)
    return name


def _check_plain(value: object, path: str) -> None:
    if isinstance(value, Mapping):
        for name, item in value.items():
            check_type(f"a name in {path}", name, str)
            _check_plain(item, f"{path}.{name}")
    elif isinstance(value, list | tuple):
        for at, item in enumerate(value):
            _check_plain(item, f"{path}[{at}]")
    elif value is not None and not isinstance(value, str | int | float):
        msg = f"{path} must be a plain JSON value, not {type(value).__name__}"
        raise WrongTypeError(msg)


@dataclass(frozen=True, slots=True)
class DecisionMetadata:
    """Facts about a response.

    Attributes:
        id: The provider's id of the response; of the first one if there were several requests.
        model: The name of the model that answered.
        usage: The tokens of all requests.
        native: Other values of the provider.
    """

    id: str = ""
    model: str = ""
    usage: Usage = NO_USAGE
    native: Mapping[str, Any] = EMPTY

    def __post_init__(self) -> None:
        freeze_fields(self, "native")


NO_DECISION_METADATA = DecisionMetadata()


@dataclass(frozen=True, slots=True)
class DecisionResponse:
    """The answers of a decision model.

    Attributes:
        results: An answer or a refusal for each question, in the order of the questions.
        metadata: Id, model and usage.
    """

    results: Mapping[str, DecisionAnswer | DecisionRefusal]
    metadata: DecisionMetadata = NO_DECISION_METADATA

    def __post_init__(self) -> None:
        freeze_fields(self, "results")

    def yes_no(self, name: str) -> YesNoAnswer:
        """Return the answer to the yes/no question *name*.

        Raises:
            ContentFilterError: The provider refused to answer it.
            UsageError: There is no such question, or it is of another kind.
        """
        return self._answer(name, YesNoAnswer)

    def choice(self, name: str) -> ChoiceAnswer:
        """Return the answer to the choice question *name*; see `yes_no` for the errors."""
        return self._answer(name, ChoiceAnswer)

    def score(self, name: str) -> ScoreAnswer:
        """Return the answer to the score question *name*; see `yes_no` for the errors."""
        return self._answer(name, ScoreAnswer)

    def is_answered(self, name: str) -> bool:
        """Return whether the question *name* was asked and answered."""
        return not isinstance(self.results.get(name), DecisionRefusal | None)

    def is_refused(self, name: str) -> bool:
        """Return whether the provider refused to answer the question *name*."""
        return isinstance(self.results.get(name), DecisionRefusal)

    def _answer(self, name: str, kind: type[T]) -> T:
        if name not in self.results:
            msg = f"there is no question {name!r}; the questions are {', '.join(self.results)}"
            raise UsageError(msg)
        result = self.results[name]
        if isinstance(result, DecisionRefusal):
            reason = f": {result.reason}" if result.reason else ""
            msg = f"the provider refused to answer the question {name!r}{reason}"
            raise ContentFilterError(msg)
        if not isinstance(result, kind):
            msg = f"the answer to {name!r} is a {type(result).__name__}, not a {kind.__name__}"
            raise UsageError(msg)
        return result


register_stored_type(
    DecisionMetadata, "decision metadata", dump_fields, lambda it: DecisionMetadata(**it)
)
register_stored_type(DecisionResponse, "decision", dump_fields, lambda it: DecisionResponse(**it))


class DecisionModel(Closeable, ABC):
    """A model that answers questions about an input with probabilities, all in one call.

    A subclass implements `answer`, which serves blocking and asynchronous callers. It must wait
    with the methods of the given runtime, or use `chatclient.providers.http.client`.
    """

    @property
    def name(self) -> str:
        """The model's name in errors, logs and spans."""
        return type(self).__name__

    @property
    def provider(self) -> str:
        """The provider's name in spans."""
        return "custom"

    @property
    def asks_models(self) -> bool:
        """Whether `answer` asks chat models, with `ask_model`."""
        return False

    @abstractmethod
    async def answer(self, request: DecisionRequest, runtime: Runtime) -> DecisionResponse:
        """Return an answer or a refusal for each question of *request*."""

    def decide(self, input: DecisionInput, questions: DecisionQuestions) -> DecisionResponse:
        """Return the answers to *questions* about *input*.

        Raises:
            UsageError: The input or a question is not valid; nothing was sent.
            ProviderError: The provider failed or refused the request.
        """
        request = DecisionRequest(input, questions)
        return drive(decide_checked(self, request, within_callers_deadline(BLOCKING)))

    async def adecide(self, input: DecisionInput, questions: DecisionQuestions) -> DecisionResponse:
        """Return the answers to *questions* about *input*; see `decide`."""
        request = DecisionRequest(input, questions)
        return await decide_checked(self, request, within_callers_deadline(ON_LOOP))


async def decide_checked(
    model: DecisionModel, request: DecisionRequest, runtime: Runtime
) -> DecisionResponse:
    """Return the response of *model*, in the order of the questions.

    Raises:
        WrongTypeError: `answer` of *model* does not return a `DecisionResponse`.
        InvalidResponseError: A question has no answer, or one that does not fit.
        ProviderError: The provider failed or refused the request.
    """
    response: object = await model.answer(request, runtime)
    check_type(f"what answer() of {model.name} returns", response, DecisionResponse)
    assert isinstance(response, DecisionResponse)  # noqa: S101 - for type checkers
    results: dict[str, DecisionAnswer | DecisionRefusal] = {}
    for name, question in request.typed_questions.items():
        result = response.results.get(name)
        if result is None:
            msg = f"{model.name} did not answer the question {name!r}"
            raise InvalidResponseError(msg, provider=model.provider)
        if not isinstance(result, DecisionRefusal) and not question.accepts(result):
            msg = f"{model.name} answered {question!r} with {result!r}, which is no answer to it"
            raise InvalidResponseError(msg, provider=model.provider)
        results[name] = result
    return replace(response, results=results)
