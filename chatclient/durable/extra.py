"""The parts of DBOS that durable turns use; the extra `dbos` installs it."""

try:
    import sqlalchemy
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
    from sqlalchemy import exc as sqlalchemy_errors
except ImportError as error:
    msg = "durable turns need DBOS; pip install 'chatclient[dbos]'"
    raise ImportError(msg) from error

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
