"""The trail of a request, observers, OpenTelemetry spans and metrics."""

from typing import TYPE_CHECKING

from chatclient._internal.exports import lazy_exports

if TYPE_CHECKING:
    from chatclient.observability.observers import (
        log_fields as log_fields,
    )
    from chatclient.observability.operations import (
        ANSWERING_MODEL as ANSWERING_MODEL,
        TIME_TO_FIRST_CHUNK as TIME_TO_FIRST_CHUNK,
        WAITS as WAITS,
        AdvisorPass as AdvisorPass,
        ClientCall as ClientCall,
        Fallback as Fallback,
        MemoryAccess as MemoryAccess,
        ModelCall as ModelCall,
        Reranking as Reranking,
        Retrieval as Retrieval,
        RetryWait as RetryWait,
        ToolRun as ToolRun,
        ToolUndo as ToolUndo,
    )
    from chatclient.observability.prefix import (
        PrefixReport as PrefixReport,
        PromptPiece as PromptPiece,
    )
    from chatclient.observability.telemetry import (
        Redact as Redact,
        Telemetry as Telemetry,
    )
    from chatclient.observability.trail import (
        Round as Round,
        Trail as Trail,
    )
    from chatclient.runtime.observation import (
        Observation as Observation,
        Observer as Observer,
        Operation as Operation,
        Step as Step,
    )
else:  # not seen by type checkers, which would take any name for one that exists
    __getattr__, __dir__ = lazy_exports(__name__)
