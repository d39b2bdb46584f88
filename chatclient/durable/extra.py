"""What the modules of durable turns need of DBOS, which the extra `dbos` installs."""

try:
    import sqlalchemy
    from dbos import (
        DBOS,
        DBOSClient,
        DBOSConfig,
        Serializer,
        SetWorkflowID,
        StepInfo,
        WorkflowStatus,
        error as dbos_errors,
    )
except ImportError as error:
    msg = "durable turns need DBOS; pip install 'chatclient[dbos]'"
    raise ImportError(msg) from error

__all__ = [
    "DBOS",
    "DBOSClient",
    "DBOSConfig",
    "Serializer",
    "SetWorkflowID",
    "StepInfo",
    "WorkflowStatus",
    "dbos_errors",
    "sqlalchemy",
]
