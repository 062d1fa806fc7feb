"""Prints hashes of the code that a target gives for some graphs: what other processes are started for.

    python -m weft_testing.conform.codes TARGET [PLUGIN MODULE]

A plugin that is not installed is given by its name and its module.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys

from weft.plugins import host
from weft_testing.conform.cases import GRAPHS
from weft_testing.conform.kit import Declined, Kit

PROBES = ("dense", "convolution", "fork")


def hashes(kit: Kit) -> dict[str, str]:
    """Of every kernel of every probe, by graph and number; and the target's fingerprint."""
    found = {"fingerprint": kit.target.fingerprint}
    for name in PROBES:
        try:
            compiled = kit.compile(GRAPHS[name].build())
        except Declined:
            continue
        for k, kernel in enumerate(compiled.kernels.values()):
            if kernel.code is not None:
                found[f"{name}, kernel {k} ({kernel.name})"] = hashlib.sha256(kernel.code.object).hexdigest()
        for section, info in compiled.executable.manifest.sections.items():
            found[f"{name}, section {section}"] = info.sha256
    return found


def main(arguments: list[str]) -> None:
    target, *plugin = arguments
    if plugin and all(p.name != plugin[0] for p in host().plugins):
        host().register(importlib.import_module(plugin[1]), plugin[0])
    print(json.dumps(hashes(Kit.open(target, True))))


if __name__ == "__main__":
    main(sys.argv[1:])
