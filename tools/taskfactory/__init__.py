"""Turn one spec file into a graded GPU-kernel-writing task.

Importing the package costs nothing: `TaskSpec` and the error types are looked up on first use, so that
`taskfactory --help` needs neither pydantic nor torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskfactory.errors import InfrastructureError, SpecError, TaskfactoryError, UsageError
    from taskfactory.spec import TaskSpec

__version__ = "0.1.0"
__all__ = ["InfrastructureError", "SpecError", "TaskSpec", "TaskfactoryError", "UsageError", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "TaskSpec":
        from taskfactory.spec import TaskSpec

        return TaskSpec
    if name in __all__:
        from taskfactory import errors

        return getattr(errors, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
