"""What tests of applications need: models that answer as told, and checks for one's own parts."""

from chatclient.testing.recording import (
    Exchange,
    Recording,
    RecordingAdvisor,
    RecordingModel,
)
from chatclient.testing.replaying import ReplayError, ReplayingModel
from chatclient.testing.scripted import Answer, ScriptedModel, call

__all__ = [
    "Answer",
    "Exchange",
    "Recording",
    "RecordingAdvisor",
    "RecordingModel",
    "ReplayError",
    "ReplayingModel",
    "ScriptedModel",
    "call",
]
