"""The errors that `pocketbert` raises on purpose: `PipelineError` is the base of all, and says what to do."""

from pipeline.errors import (
    ArtifactError,
    GateFailed,
    InputError,
    PipelineError,
    RecipeError,
    StudentError,
    ToolchainError,
    UnknownOp,
    WorkerDied,
)
from pipeline.trust.signing import SignatureRefused

__all__ = [
    "ArtifactError",
    "GateFailed",
    "InputError",
    "PipelineError",
    "RecipeError",
    "SignatureRefused",
    "StudentError",
    "ToolchainError",
    "UnknownOp",
    "WorkerDied",
]
