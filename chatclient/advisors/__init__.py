"""Advisors: code around the model call, such as memory, guardrails and the tool loop."""

from typing import TYPE_CHECKING

from chatclient._internal.exports import lazy_exports

if TYPE_CHECKING:
    from chatclient.advisors.budget import (
        Budget as Budget,
        Period as Period,
        Price as Price,
    )
    from chatclient.advisors.context_window import (
        ContextWindowAdvisor as ContextWindowAdvisor,
    )
    from chatclient.advisors.guardrails.advisors import (
        GuardrailResult as GuardrailResult,
        InputGuardrail as InputGuardrail,
        InputGuardrailAdvisor as InputGuardrailAdvisor,
        Judgement as Judgement,
        OutputGuardrail as OutputGuardrail,
        OutputGuardrailAdvisor as OutputGuardrailAdvisor,
        json_guardrail as json_guardrail,
        moderated_input as moderated_input,
        moderated_output as moderated_output,
        refuse_prompt_injection as refuse_prompt_injection,
    )
    from chatclient.advisors.guardrails.safe_guard import (
        FAILURE_RESPONSE as FAILURE_RESPONSE,
        SafeGuardAdvisor as SafeGuardAdvisor,
    )
    from chatclient.advisors.guardrails.tool_results import (
        ToolGuardrail as ToolGuardrail,
        ToolGuardrailInterceptor as ToolGuardrailInterceptor,
        mask_personal_data as mask_personal_data,
        refuse_injected_instructions as refuse_injected_instructions,
    )
    from chatclient.advisors.guardrails.untrusted import (
        UntrustedArguments as UntrustedArguments,
    )
    from chatclient.advisors.memory.advisors import (
        MessageChatMemoryAdvisor as MessageChatMemoryAdvisor,
        PromptChatMemoryAdvisor as PromptChatMemoryAdvisor,
    )
    from chatclient.advisors.memory.recall_tools import (
        RecallTools as RecallTools,
    )
    from chatclient.advisors.memory.session import (
        TURN_MESSAGE as TURN_MESSAGE,
        SessionLogAdvisor as SessionLogAdvisor,
        SessionMemoryAdvisor as SessionMemoryAdvisor,
    )
    from chatclient.advisors.memory.vector_store import (
        VectorStoreChatMemoryAdvisor as VectorStoreChatMemoryAdvisor,
    )
    from chatclient.advisors.rate_limit import (
        RateLimitAdvisor as RateLimitAdvisor,
    )
    from chatclient.advisors.response_cache import (
        REFRESH as REFRESH,
        InMemoryResponseStore as InMemoryResponseStore,
        ResponseCacheAdvisor as ResponseCacheAdvisor,
        ResponseStore as ResponseStore,
    )
    from chatclient.advisors.retrieval.advisor import (
        QuestionAnswerAdvisor as QuestionAnswerAdvisor,
        ReReadingAdvisor as ReReadingAdvisor,
        RetrievalAugmentationAdvisor as RetrievalAugmentationAdvisor,
    )
    from chatclient.advisors.simple_logger import (
        SimpleLoggerAdvisor as SimpleLoggerAdvisor,
    )
    from chatclient.advisors.structured_output import (
        StructuredOutputAdvisor as StructuredOutputAdvisor,
        StructuredOutputValidationAdvisor as StructuredOutputValidationAdvisor,
    )
    from chatclient.advisors.tool_loop.advisor import (
        Steering as Steering,
        ToolCallingAdvisor as ToolCallingAdvisor,
    )
    from chatclient.advisors.tool_search.advisor import (
        ToolSearchToolCallingAdvisor as ToolSearchToolCallingAdvisor,
    )
    from chatclient.advisors.usage_store import (
        InMemoryUsageStore as InMemoryUsageStore,
        SharedUsageStore as SharedUsageStore,
        UsageKey as UsageKey,
        UsageStore as UsageStore,
    )
    from chatclient.chain.chain import (
        HIGHEST_PRECEDENCE as HIGHEST_PRECEDENCE,
        LOWEST_PRECEDENCE as LOWEST_PRECEDENCE,
        MEMORY_ORDER as MEMORY_ORDER,
        TOOL_CALLING_ORDER as TOOL_CALLING_ORDER,
        AdvisorAttributes as AdvisorAttributes,
    )
    from chatclient.chain.model_call import (
        ask_model as ask_model,
    )
    from chatclient.chain.params import (
        CACHE_RESPONSES as CACHE_RESPONSES,
        EVENT_FILTER as EVENT_FILTER,
        FILTER_EXPRESSION as FILTER_EXPRESSION,
        TOOL_SEARCH_ROLES as TOOL_SEARCH_ROLES,
    )
else:  # not seen by type checkers, which would take any name for one that exists
    __getattr__, __dir__ = lazy_exports(__name__)
