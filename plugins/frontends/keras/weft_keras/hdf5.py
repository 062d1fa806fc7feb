"""Looks through an HDF5 file: `python hdf5.py PATH SECONDS` prints what it found as JSON. Ends by a signal if it needs
more seconds.

HDF5's library can hang or crash on damaged files, so a frontend runs this in a process of its own. Everything that
Keras would read is touched: links, attributes and compressed data. Imports h5py and Python's own library alone.
"""

from __future__ import annotations

import json
import math
import signal
import sys
from pathlib import Path
from typing import Any

MOST_NESTED = 200
MOST_ENTRIES = 1 << 20
MOST_EXPANDED = 1100
"""What compressed data may unpack to, by bytes of the file: deflate reaches 1,032."""


class Refused(Exception):
    """Why a file is not read."""


def report(path: Path) -> dict[str, Any]:
    """{"config": the model's configuration or None}, or {"why": …} of a file that is not read."""
    try:
        import h5py

        with h5py.File(path, "r") as file:
            _look(h5py, file, MOST_EXPANDED * path.stat().st_size + (1 << 20))
            config = file.attrs.get("model_config")
            return {"config": config.decode() if isinstance(config, bytes) else config}
    except Refused as error:
        return {"why": str(error)}
    except Exception as error:  # noqa: BLE001 - whatever h5py raises
        return {"why": f"h5py: {type(error).__name__}: {' '.join(str(error).split())[:300]}"}


def _look(h5py: Any, file: Any, most: int) -> None:
    """Touches all entries; their sizes together are at most `most` bytes."""
    seen: set[int] = set()
    total = entries = 0
    stack = [(file, 0)]
    while stack:
        group, depth = stack.pop()
        _attributes(group)
        for name in group:
            entries += 1
            link = group.get(name, getlink=True)
            if not isinstance(link, h5py.HardLink):
                raise Refused(f"'{name}' is a link: {type(link).__name__}")
            entry = group[name]
            if isinstance(entry, h5py.Group):
                address = h5py.h5o.get_info(entry.id).addr
                if depth >= MOST_NESTED or address in seen or entries > MOST_ENTRIES:
                    raise Refused(f"its groups contain each other, or nest more than {MOST_NESTED} deep")
                seen.add(address)
                stack.append((entry, depth + 1))
                continue
            if not isinstance(entry, h5py.Dataset):
                raise Refused(f"'{name}' is a {type(entry).__name__}")
            if entry.external or entry.is_virtual:
                raise Refused(f"'{name}' has its data in another file")
            size = entry.dtype.itemsize * math.prod(entry.shape or ())
            total += size if entry.chunks else entry.id.get_storage_size()
            if size > most or total > most or entries > MOST_ENTRIES:
                raise Refused(f"'{name}' unpacks to {size:,} bytes")
            _attributes(entry)
            if entry.chunks and size:
                entry[()]


def _attributes(entry: Any) -> None:
    for name in entry.attrs:
        entry.attrs[name]


def main() -> None:
    import h5py  # noqa: F401 - its import is not counted

    signal.setitimer(signal.ITIMER_PROF, float(sys.argv[2]))  # of the processor; SIGPROF ends the process
    print(json.dumps(report(Path(sys.argv[1])), default=str))


if __name__ == "__main__":
    main()
