"""Exceptions that the user may see: each message says what happened, to what, and what to do next."""

from __future__ import annotations


class KvnotesError(Exception):
    """Base of every error that kvnotes-local raises on purpose.

    The command line prints the message without a traceback and exits with 1.
    """


class StateFormatError(KvnotesError):
    """Bytes that should be a llama.cpp sequence state are not, or not for this model and context."""


class LayoutError(KvnotesError):
    """A cache layout that is not understood, or two layouts that do not fit each other."""


class RotationError(KvnotesError):
    """Keys of this model are not a pure rotation of one another, or a rotation does not fit a layout."""


class ModelError(KvnotesError):
    """A model file is missing, is not a GGUF file, or cannot be loaded."""


class EngineError(KvnotesError):
    """llama.cpp refused or failed an operation."""


class ContextFullError(EngineError):
    """The tokens asked for do not fit into the context."""


class EngineLost(EngineError):
    """The engine was started again since: the rows of this sequence are gone and have to be made anew."""


class EngineCrashed(EngineLost):
    """The engine process died or got stuck. It is started again with the next call; chats are put together from what is stored.

    ``operation``: name of the call. ``cause``: how it ended. ``log``: its last lines. ``again``: the second
    time, and the operation in which it died before has not succeeded since.
    """

    def __init__(
        self, message: str, *, operation: str = "", cause: str = "", log: tuple[str, ...] = (), again: bool = False
    ) -> None:
        super().__init__(message)
        self.operation = operation
        self.cause = cause
        self.log = log
        self.again = again


class Cancelled(KvnotesError):
    """The user stopped the operation; what was there before is unchanged."""


class SkillError(KvnotesError):
    """A skill is unknown, unreadable or does not follow the format."""


class ArtifactError(KvnotesError):
    """An artifact is damaged, or was made for another model, layout or version."""


class OtherVersionError(ArtifactError):
    """A sound artifact of another version of kvnotes-local. ``model_name``: as far as it says it, else empty."""

    def __init__(self, message: str, model_name: str = "") -> None:
        super().__init__(message)
        self.model_name = model_name


class DiskFullError(ArtifactError):
    """There is no room for an artifact; nothing of it was written."""


class UsageError(KvnotesError):
    """The request makes no sense as asked (exit code 2)."""


class Interrupted(BaseException):
    """A stop signal where nothing has to be stopped first. No KeyboardInterrupt: of that typer makes exit code 130."""
