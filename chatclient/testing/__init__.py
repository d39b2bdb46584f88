"""Scripted and recorded models, evaluators and contract tests for applications."""

from typing import TYPE_CHECKING

from chatclient._internal.exports import lazy_exports

if TYPE_CHECKING:
    from chatclient.testing.ask import (
        Ask as Ask,
        Asked as Asked,
        Mode as Mode,
    )
    from chatclient.testing.evaluation import (
        CorrectnessEvaluator as CorrectnessEvaluator,
        CriterionEvaluator as CriterionEvaluator,
        EvaluationRequest as EvaluationRequest,
        EvaluationResponse as EvaluationResponse,
        Evaluator as Evaluator,
        FactCheckingEvaluator as FactCheckingEvaluator,
        RelevancyEvaluator as RelevancyEvaluator,
        assert_passes as assert_passes,
    )
    from chatclient.testing.evaluation_events import (
        record_evaluations as record_evaluations,
    )
    from chatclient.testing.model_contract import (
        ChatModelContract as ChatModelContract,
        EmbeddingModelContract as EmbeddingModelContract,
        RerankModelContract as RerankModelContract,
    )
    from chatclient.testing.plugin import (
        ask as ask,
        chat_redact as chat_redact,
        recorded_model as recorded_model,
    )
    from chatclient.testing.prefix import (
        assert_stable_prefix as assert_stable_prefix,
    )
    from chatclient.testing.pydantic_evals import (
        AnswerJudge as AnswerJudge,
        RetrievalMetrics as RetrievalMetrics,
        pydantic_evals_dataset as pydantic_evals_dataset,
    )
    from chatclient.testing.recording import (
        Exchange as Exchange,
        Recording as Recording,
        RecordingAdvisor as RecordingAdvisor,
        RecordingModel as RecordingModel,
        Redact as Redact,
        ReplayError as ReplayError,
        ReplayingModel as ReplayingModel,
    )
    from chatclient.testing.repetition import (
        PassRate as PassRate,
        RunResult as RunResult,
        RunsReport as RunsReport,
        aevaluate_runs as aevaluate_runs,
        evaluate_runs as evaluate_runs,
    )
    from chatclient.testing.repository_contract import (
        ChatMemoryRepositoryContract as ChatMemoryRepositoryContract,
    )
    from chatclient.testing.retrieval_evaluation import (
        RetrievalCase as RetrievalCase,
        RetrievalCaseResult as RetrievalCaseResult,
        RetrievalReport as RetrievalReport,
        RetrievalScores as RetrievalScores,
        aevaluate_answers as aevaluate_answers,
        aevaluate_retriever as aevaluate_retriever,
        evaluate_answers as evaluate_answers,
        evaluate_retriever as evaluate_retriever,
    )
    from chatclient.testing.scripted import (
        Answer as Answer,
        AnswerFunction as AnswerFunction,
        ScriptedModel as ScriptedModel,
        call as call,
    )
    from chatclient.testing.session_contract import (
        SessionRepositoryContract as SessionRepositoryContract,
    )
    from chatclient.testing.simulated_user import (
        SimulatedConversation as SimulatedConversation,
        SimulatedTurn as SimulatedTurn,
        SimulatedUser as SimulatedUser,
    )
    from chatclient.testing.tool_index_contract import (
        ToolIndexContract as ToolIndexContract,
    )
    from chatclient.testing.trajectory import (
        ExpectedToolCalls as ExpectedToolCalls,
        SpendingLimit as SpendingLimit,
        ToolCallCount as ToolCallCount,
        ToolCallPattern as ToolCallPattern,
        TrailCheck as TrailCheck,
    )
    from chatclient.testing.turn_recording import (
        RecordedStep as RecordedStep,
        TurnRecording as TurnRecording,
    )
    from chatclient.testing.turn_replay import (
        TurnReplay as TurnReplay,
        areplay_turn as areplay_turn,
        replay_turn as replay_turn,
    )
    from chatclient.testing.vector_store_contract import (
        VectorStoreContract as VectorStoreContract,
    )
else:  # not seen by type checkers, which would take any name for one that exists
    __getattr__, __dir__ = lazy_exports(__name__)
