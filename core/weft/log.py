"""The logger `weft`: stages of compilations with their times at INFO, each kernel's at DEBUG. A program configures it
as any other; WEFT_LOG and `weft --verbose` show it on stderr."""

from __future__ import annotations

import logging
from typing import TextIO

from weft import settings

logger = logging.getLogger("weft")
logger.addHandler(logging.NullHandler())


def show(level: str | None = None) -> None:
    """Shows messages from `level` on ("info", "debug", …) on stderr, once; without one as WEFT_LOG says, if it says
    anything.

    Raises:
        SettingError: WEFT_LOG is no level.
    """
    level = level or settings.LOG.get()
    if level is None:
        return
    logger.setLevel(level.upper())
    if not any(isinstance(h, _Shown) for h in logger.handlers):
        handler = _Shown()
        handler.setFormatter(logging.Formatter("%(relativeCreated)8.0f ms %(levelname)-5s %(name)s: %(message)s"))
        logger.addHandler(handler)


class _Shown(logging.StreamHandler[TextIO]):
    """On stderr as it is when a message comes, which a program or a test may have replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        import sys

        if sys.stderr is not None:
            self.setStream(sys.stderr)
            super().emit(record)
