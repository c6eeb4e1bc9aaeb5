"""Where kvnotes keeps its files on this platform; each place can be moved with an environment variable."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from kvnotes_local.errors import KvnotesError

APP_NAME = "kvnotes"


@dataclass(frozen=True)
class Paths:
    """Directories of one user. They need not exist: ``ensure_private`` makes the one that is about to be written to.

    ``data``: chats and artifacts, which cannot be had again for nothing. ``cache``: what can be found out again.
    ``log``: logs. ``config``: settings and themes.
    """

    data: Path
    cache: Path
    log: Path
    config: Path

    @classmethod
    def default(cls, env: Mapping[str, str] = os.environ) -> Paths:
        """The platform's places, or those of $KVNOTES_DATA_DIR, _CACHE_DIR, _LOG_DIR and _CONFIG_DIR where set."""

        def place(variable: str, usual: str) -> Path:
            return Path(env.get(variable) or usual).expanduser().absolute()

        return cls(
            data=place("KVNOTES_DATA_DIR", platformdirs.user_data_dir(APP_NAME, appauthor=False)),
            cache=place("KVNOTES_CACHE_DIR", platformdirs.user_cache_dir(APP_NAME, appauthor=False)),
            log=place("KVNOTES_LOG_DIR", platformdirs.user_log_dir(APP_NAME, appauthor=False)),
            config=place("KVNOTES_CONFIG_DIR", platformdirs.user_config_dir(APP_NAME, appauthor=False)),
        )


def ensure_private(directory: Path) -> Path:
    """Make the directory and the missing ones above it, for this user only (0700), and return it.

    One that is there keeps its permissions: they are the user's choice. Raises KvnotesError when it cannot be made.
    """
    missing: list[Path] = []
    at = directory
    while not at.exists() and at != at.parent:
        missing.append(at)
        at = at.parent
    try:
        for path in reversed(missing):
            path.mkdir(mode=0o700, exist_ok=True)
        if not directory.is_dir():
            raise NotADirectoryError(f"{directory} is not a directory")
    except OSError as error:
        raise KvnotesError(
            f"The directory {directory} cannot be made: {error.strerror or error}. "
            "Set KVNOTES_DATA_DIR, KVNOTES_CACHE_DIR, KVNOTES_LOG_DIR or KVNOTES_CONFIG_DIR to a place that is yours."
        ) from error
    return directory
