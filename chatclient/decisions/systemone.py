"""Decision models of servers with the System One API (`POST /v1/systemone`)."""

from collections.abc import Mapping
from typing import Any, Unpack

from chatclient.chat.response import Usage
from chatclient.decisions.model import (
    DecisionMetadata,
    DecisionModel,
    DecisionRequest,
    DecisionResponse,
)
from chatclient.decisions.questions import (
    ChoiceAnswer,
    ChoiceQuestion,
    DecisionAnswer,
    DecisionQuestion,
    ScoreAnswer,
    YesNoAnswer,
    YesNoQuestion,
)
from chatclient.errors import InvalidResponseError
from chatclient.extend import (
    MALFORMED,
    HttpAnswer,
    HttpModel,
    HttpOptions,
    HttpSettings,
    Key,
    check_model_name,
    dumps,
    int_field,
    key_source,
    other_fields,
    parse_json,
    raise_for_error,
)
from chatclient.runtime.runtime import Runtime

_PROVIDER = "systemone"
_ROUNDING = 1e-3  # by which a probability or a score may be outside of its range
_FIELDS = frozenset({"id", "model", "answers", "usage"})


class SystemOneDecisionModel(HttpModel, DecisionModel):
    """A decision model of a server with the System One API.

    TypeSafe's Jev, Fireworks, LiteLLM, vLLM, llama.cpp, Ollama and others serve it. All questions
    are one request. Limits, such as 255 options or 10 levels, are those of the server.

    Args:
        model: The model's name.
        base_url: URL of the API with its version, such as `http://localhost:8000/v1`.
        api_key: The key, or a function that returns the current one; default: the environment's
            `TYPESAFE_API_KEY`, else none is sent.
        **http: `max_retries`, `timeout` (default 60), `headers`, `http_client`, `limits`; see
            `HttpOptions`.

    Raises:
        UsageError: *base_url* is not an HTTP URL, or *model* is blank.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str,
        api_key: Key = None,
        **http: Unpack[HttpOptions],
    ) -> None:
        check_model_name(model)
        self._model = model
        http.setdefault("timeout", 60.0)
        key = key_source(api_key, "TYPESAFE_API_KEY")
        self._http = HttpSettings(**http).connect(_PROVIDER, base_url, key, idempotent=True)

    @property
    def name(self) -> str:
        """The model's name."""
        return self._model

    @property
    def provider(self) -> str:
        """`systemone`."""
        return _PROVIDER

    async def answer(self, request: DecisionRequest, runtime: Runtime) -> DecisionResponse:
        """Return an answer for each question of *request*.

        Raises:
            InvalidResponseError: The response has no valid answer for a question.
            ProviderError: The server failed or refused the request.
        """
        questions = request.typed_questions
        body = {
            "model": self._model,
            "state": request.input,
            "questions": {name: _encoded(question) for name, question in questions.items()},
        }

        def decode(answer: HttpAnswer) -> DecisionResponse:
            data = parse_json(_PROVIDER, answer.body)
            raise_for_error(_PROVIDER, data, answer.headers)
            try:
                answers = data["answers"]
                results = {
                    name: _answer(question, answers[name]) for name, question in questions.items()
                }
                usage = data.get("usage") or {}
                metadata = DecisionMetadata(
                    str(data.get("id") or ""),
                    str(data.get("model") or ""),
                    Usage(
                        int_field(usage.get("input_tokens")) or 0,
                        int_field(usage.get("output_tokens")) or 0,
                        native=usage,
                    ),
                    other_fields(data, _FIELDS),
                )
            except MALFORMED as error:
                msg = f"the server's response contains no valid answers to the questions: {error}"
                raise InvalidResponseError(msg, provider=_PROVIDER, body=data) from error
            return DecisionResponse(results, metadata)

        return await self._http.post(runtime, "/systemone", dumps(body), decode)


def _encoded(question: DecisionQuestion) -> dict[str, Any]:
    match question:
        case YesNoQuestion(text=text, yes_when=yes, no_when=no):
            criteria = {key: value for key, value in (("true", yes), ("false", no)) if value}
            found = {"type": "noul", "instructions": text}
            return {**found, "criteria": criteria} if criteria else found
        case ChoiceQuestion(text=text):
            options = {name: about or None for name, about in question.outcomes.items()}
            return {"type": "choice", "instructions": text, "criteria": options}
        case _:
            levels = list(question.outcomes)
            return {"type": "score", "instructions": question.text, "criteria": levels}


def _answer(question: DecisionQuestion, data: Mapping[str, Any]) -> DecisionAnswer:
    probabilities = data.get("probabilities") or {}
    match question:
        case YesNoQuestion():
            return YesNoAnswer(_within(data["noul"]))
        case ChoiceQuestion():
            found = {name: _within(value) for name, value in probabilities.items()}
            return ChoiceAnswer(data["choice"], found, data.get("confidence"))
        case _:
            levels = list(question.outcomes)
            found = {levels[int(at)]: _within(it) for at, it in probabilities.items()}
            score = _within(float(data["score"]), len(levels) - 1)
            return ScoreAnswer(score, found, data.get("confidence"))


def _within(value: float, most: float = 1.0) -> float:
    """Return *value*, from 0 to *most*, without its rounding error."""
    is_close = -_ROUNDING <= value <= most + _ROUNDING
    return min(max(value, 0.0), most) if is_close else value
