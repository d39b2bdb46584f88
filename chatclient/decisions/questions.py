"""The questions of a decision model, and their answers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from chatclient.chat.stored_values import register_stored_type
from chatclient.errors import UsageError, WrongTypeError
from chatclient.extend import EMPTY, FrozenDict, check_type, freeze_fields

YES, NO = "yes", "no"


@dataclass(frozen=True, slots=True)
class YesNoAnswer:
    """The answer to a `YesNoQuestion`.

    Attributes:
        probability: The probability of yes, from 0 to 1.

    Raises:
        UsageError: The probability is not from 0 to 1.
    """

    probability: float

    def __post_init__(self) -> None:
        check_probability("a probability", self.probability)

    def is_yes(self, threshold: float = 0.5) -> bool:
        """Return whether the probability is at least *threshold*."""
        return self.probability >= threshold


@dataclass(frozen=True, slots=True)
class ChoiceAnswer:
    """The answer to a `ChoiceQuestion`.

    Attributes:
        value: The chosen option.
        probabilities: The probability of each option, or empty if the provider does not tell.
        confidence: The provider's own measure from 0 to 1, or None. Not comparable between
            providers.

    Raises:
        UsageError: A probability is not from 0 to 1.
    """

    value: str
    probabilities: Mapping[str, float] = EMPTY
    confidence: float | None = None

    def __post_init__(self) -> None:
        _freeze_probabilities(self, self.probabilities)

    def margin(self) -> float:
        """Return the difference between the two highest probabilities.

        Raises:
            UsageError: The provider did not tell the probabilities.
        """
        if len(self.probabilities) < 2:  # noqa: PLR2004
            msg = "there is no margin, because the provider did not tell the probabilities"
            raise UsageError(msg)
        first, second, *_ = sorted(self.probabilities.values(), reverse=True)
        return first - second


@dataclass(frozen=True, slots=True)
class ScoreAnswer:
    """The answer to a `ScoreQuestion`.

    Attributes:
        score: The mean of the levels, weighted by their probabilities. Levels count from 0.
        probabilities: The probability of each level, or empty if the provider does not tell.
        confidence: The provider's own measure from 0 to 1, or None. Not comparable between
            providers.

    Raises:
        UsageError: A probability is not from 0 to 1.
    """

    score: float
    probabilities: Mapping[str, float] = EMPTY
    confidence: float | None = None

    def __post_init__(self) -> None:
        _freeze_probabilities(self, self.probabilities)


@dataclass(frozen=True, slots=True)
class DecisionRefusal:
    """The provider refused to answer a question.

    Attributes:
        reason: The reason in the provider's words; may be empty.
    """

    reason: str = ""


DecisionAnswer = YesNoAnswer | ChoiceAnswer | ScoreAnswer


@dataclass(frozen=True, slots=True)
class YesNoQuestion:
    """A question that is answered by the probability of yes.

    Attributes:
        text: The question.
        yes_when: When the answer is yes, if the question is ambiguous.
        no_when: When the answer is no.

    Raises:
        UsageError: The question is blank.
    """

    text: str
    yes_when: str = ""
    no_when: str = ""

    def __post_init__(self) -> None:
        _check_text(self.text)

    @property
    def outcomes(self) -> Mapping[str, str]:
        """The descriptions of `yes` and `no`."""
        return {YES: self.yes_when, NO: self.no_when}

    def answer(self, probabilities: Mapping[str, float]) -> YesNoAnswer:
        """Return the answer with the *probabilities* of the outcomes, which sum up to 1."""
        return YesNoAnswer(probabilities[YES])

    def accepts(self, answer: object) -> bool:
        """Return whether *answer* answers this question."""
        return isinstance(answer, YesNoAnswer)


@dataclass(frozen=True, slots=True)
class ChoiceQuestion:
    """A question that is answered by one of several options.

    Attributes:
        text: The question.
        options: At least two options, as names or as descriptions by name.

    Raises:
        UsageError: The question or an option is blank, or there are too few different options.
    """

    text: str
    options: Mapping[str, str] | Iterable[str]

    def __post_init__(self) -> None:
        _check_text(self.text)
        _freeze_outcomes(self, "options", self.options)

    @property
    def outcomes(self) -> Mapping[str, str]:
        """The descriptions of the options by name."""
        return _as_outcomes(self.options)

    def answer(self, probabilities: Mapping[str, float]) -> ChoiceAnswer:
        """Return the answer with the *probabilities* of the options, which sum up to 1."""
        return ChoiceAnswer(max(probabilities, key=probabilities.__getitem__), probabilities)

    def accepts(self, answer: object) -> bool:
        """Return whether *answer* answers this question."""
        names = self.outcomes.keys()
        return (
            isinstance(answer, ChoiceAnswer)
            and answer.value in names
            and answer.probabilities.keys() <= names
        )


@dataclass(frozen=True, slots=True)
class ScoreQuestion:
    """A question that is answered by a level of an ordered scale.

    Attributes:
        text: The question.
        levels: At least two levels, from the lowest to the highest.

    Raises:
        UsageError: The question or a level is blank, or there are too few different levels.
    """

    text: str
    levels: Iterable[str]

    def __post_init__(self) -> None:
        _check_text(self.text)
        _freeze_outcomes(self, "levels", self.levels)

    @property
    def outcomes(self) -> Mapping[str, str]:
        """The levels; they have no descriptions."""
        return _as_outcomes(self.levels)

    def answer(self, probabilities: Mapping[str, float]) -> ScoreAnswer:
        """Return the answer with the *probabilities* of the levels, which sum up to 1."""
        score = sum(level * probabilities[name] for level, name in enumerate(self.outcomes))
        return ScoreAnswer(score, probabilities)

    def accepts(self, answer: object) -> bool:
        """Return whether *answer* answers this question."""
        names = self.outcomes.keys()
        return (
            isinstance(answer, ScoreAnswer)
            and 0 <= answer.score <= len(names) - 1
            and answer.probabilities.keys() <= names
        )


DecisionQuestion = YesNoQuestion | ChoiceQuestion | ScoreQuestion


def check_probability(what: str, given: object) -> None:
    """Check that *given* is a probability.

    Raises:
        UsageError: It is not.
    """
    # Not a number (NaN) is in no range.
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= 1:
        msg = f"{what} must be a number from 0 to 1, not {given!r}"
        raise UsageError(msg)


def _check_text(text: object) -> None:
    check_type("a question", text, str)
    if not str(text).strip():
        msg = "the text of a question must not be blank"
        raise UsageError(msg)


def _freeze_outcomes(question: object, name: str, given: object) -> None:
    """Replace the attribute *name* of *question*, which is *given*, by an immutable copy."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        msg = f"{name} must be a collection of texts, not {given!r}"
        raise WrongTypeError(msg)
    outcomes: FrozenDict[str, str] | tuple[str, ...]
    outcomes = FrozenDict(given) if isinstance(given, Mapping) else tuple(given)
    texts = [*outcomes, *(outcomes.values() if isinstance(outcomes, FrozenDict) else ())]
    for text in texts:
        check_type(f"each of the {name}", text, str)
    if any(not each.strip() for each in outcomes):
        msg = f"each of the {name} needs a name that is not blank"
        raise UsageError(msg)
    if len(set(outcomes)) < max(2, len(outcomes)):
        msg = f"{name} must be at least two different texts, not {list(outcomes)}"
        raise UsageError(msg)
    object.__setattr__(question, name, outcomes)


def _as_outcomes(given: Mapping[str, str] | Iterable[str]) -> Mapping[str, str]:
    return given if isinstance(given, Mapping) else dict.fromkeys(given, "")


def _freeze_probabilities(answer: object, probabilities: Mapping[str, float]) -> None:
    for value in probabilities.values():
        check_probability("a probability", value)
    freeze_fields(answer, "probabilities")


def dump_fields(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name, as what is stored of it."""
    return {each.name: getattr(value, each.name) for each in fields(value)}


register_stored_type(YesNoAnswer, "yes/no answer", dump_fields, lambda it: YesNoAnswer(**it))
register_stored_type(ChoiceAnswer, "choice answer", dump_fields, lambda it: ChoiceAnswer(**it))
register_stored_type(ScoreAnswer, "score answer", dump_fields, lambda it: ScoreAnswer(**it))
register_stored_type(DecisionRefusal, "refusal", dump_fields, lambda it: DecisionRefusal(**it))
