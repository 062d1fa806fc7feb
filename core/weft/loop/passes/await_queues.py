"""The old name of `weft_queues.await_queues`, of the distribution `weft-queues`.

Importing from here warns of its deprecation; version 0.3 has it no more.
"""

from weft.aliases import renamed

__getattr__ = renamed(__name__)
