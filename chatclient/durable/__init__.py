"""Turns that survive crashes, deployments and long waits, on an engine for durable execution."""

from typing import TYPE_CHECKING

from chatclient._internal.exports import lazy_exports

if TYPE_CHECKING:
    from chatclient.chat.events import (
        RoundRestarted as RoundRestarted,
        TurnDecided as TurnDecided,
    )
    from chatclient.chat.serialization import (
        error_from_dict as error_from_dict,
        error_to_dict as error_to_dict,
    )
    from chatclient.durable.client import (
        DurableClient as DurableClient,
        DurableConversation as DurableConversation,
        DurableRequest as DurableRequest,
        MapResult as MapResult,
        TurnMap as TurnMap,
        durable as durable,
    )
    from chatclient.durable.engine import (
        Engine as Engine,
    )
    from chatclient.durable.events import (
        DurableEvent as DurableEvent,
    )
    from chatclient.durable.handle import (
        TurnHandle as TurnHandle,
    )
    from chatclient.durable.health import (
        EndedState as EndedState,
        TurnHealth as TurnHealth,
        TurnInfo as TurnInfo,
    )
    from chatclient.durable.launching import (
        connect as connect,
        launch as launch,
    )
    from chatclient.durable.prefect_recorder import (
        PrefectRecorder as PrefectRecorder,
    )
    from chatclient.durable.queues import (
        Rate as Rate,
        TurnQueue as TurnQueue,
    )
    from chatclient.durable.recording import (
        ExecutionLostError as ExecutionLostError,
        KnowsSteps as KnowsSteps,
        OnInterrupted as OnInterrupted,
        Publisher as Publisher,
        Recording as Recording,
        StepRecorder as StepRecorder,
        TurnRetries as TurnRetries,
    )
    from chatclient.durable.requests import (
        TurnResult as TurnResult,
        recorded as recorded,
        request_from_dict as request_from_dict,
        request_to_dict as request_to_dict,
    )
    from chatclient.durable.states import (
        TurnState as TurnState,
        TurnStatus as TurnStatus,
    )
else:  # not seen by type checkers, which would take any name for one that exists
    __getattr__, __dir__ = lazy_exports(__name__)
