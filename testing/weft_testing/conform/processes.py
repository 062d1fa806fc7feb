"""Other processes, which see the same modules as this one."""

from __future__ import annotations

import os
import subprocess
import sys


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs Python with arguments and returns when it is done."""
    path = os.pathsep.join(p for p in sys.path if p)
    command = [sys.executable, *arguments]
    return subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
