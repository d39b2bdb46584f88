"""Decision models, with probabilities, and rules and reviews that decide about tool calls."""

from typing import TYPE_CHECKING

from chatclient._internal.exports import lazy_exports

if TYPE_CHECKING:
    from chatclient.decisions.approval_rules import (
        ApprovalRule as ApprovalRule,
        ApprovalRules as ApprovalRules,
        ToolCallReview as ToolCallReview,
    )
    from chatclient.decisions.approval_rules_sql import (
        SqlApprovalRules as SqlApprovalRules,
    )
    from chatclient.decisions.call import (
        DecisionCall as DecisionCall,
        ask_decision as ask_decision,
    )
    from chatclient.decisions.chat_model import (
        ChatDecisionModel as ChatDecisionModel,
    )
    from chatclient.decisions.document_filter import (
        DecisionDocumentFilter as DecisionDocumentFilter,
    )
    from chatclient.decisions.guardrails import (
        DecisionCheck as DecisionCheck,
        DecisionChecks as DecisionChecks,
        decision_input_guardrail as decision_input_guardrail,
        decision_output_guardrail as decision_output_guardrail,
        decision_tool_guardrail as decision_tool_guardrail,
    )
    from chatclient.decisions.model import (
        DecisionInput as DecisionInput,
        DecisionMetadata as DecisionMetadata,
        DecisionModel as DecisionModel,
        DecisionQuestions as DecisionQuestions,
        DecisionRequest as DecisionRequest,
        DecisionResponse as DecisionResponse,
    )
    from chatclient.decisions.narrowing import (
        NarrowingToolProvider as NarrowingToolProvider,
        OnDecisionFailure as OnDecisionFailure,
    )
    from chatclient.decisions.questions import (
        ChoiceAnswer as ChoiceAnswer,
        ChoiceQuestion as ChoiceQuestion,
        DecisionAnswer as DecisionAnswer,
        DecisionQuestion as DecisionQuestion,
        DecisionRefusal as DecisionRefusal,
        ScoreAnswer as ScoreAnswer,
        ScoreQuestion as ScoreQuestion,
        YesNoAnswer as YesNoAnswer,
        YesNoQuestion as YesNoQuestion,
    )
    from chatclient.decisions.systemone import (
        SystemOneDecisionModel as SystemOneDecisionModel,
    )
    from chatclient.decisions.tool_index import (
        DecisionToolIndex as DecisionToolIndex,
    )
else:  # not seen by type checkers, which would take any name for one that exists
    __getattr__, __dir__ = lazy_exports(__name__)
