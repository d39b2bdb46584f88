"""The parts of DBOS that durable turns use; the extra `dbos` installs it."""

from chatclient._internal.extras import needed_by

with needed_by("a durable turn", extra="dbos"):
    from dbos import (
        DBOS,
        DBOSClient,
        DBOSConfig,
        Serializer,
        SetWorkflowAttributes,
        SetWorkflowID,
        StepInfo,
        WorkflowStatus,
        _serialization as dbos_serialization,
        error as dbos_errors,
    )

with needed_by("a durable turn", extra="dbos"):
    import sqlalchemy
    from sqlalchemy import exc as sqlalchemy_errors

__all__ = [
    "DBOS",
    "DBOSClient",
    "DBOSConfig",
    "Serializer",
    "SetWorkflowAttributes",
    "SetWorkflowID",
    "StepInfo",
    "WorkflowStatus",
    "dbos_errors",
    "dbos_serialization",
    "sqlalchemy",
    "sqlalchemy_errors",
]
