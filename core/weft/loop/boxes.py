"""The old name of `weft_gpu.bulk_copies`, of the distribution `weft-gpu`; `Box` is `BulkCopy` there.

Importing from here warns of its deprecation; version 0.3 has it no more.
"""

from weft.aliases import renamed

__getattr__ = renamed(__name__, {"Box": "BulkCopy"})
