"""Numbers that code and device agree on. This module is runtime: it imports no compiler."""

ALIGN = 256
"""Bytes: bindings begin at multiples of it on every device (W3C, "WebGPU", minStorageBufferOffsetAlignment)."""
LARGEST = 1 << 30
"""Bytes of a binding, and the largest size, at most: kernels count elements in 32 bits, with room for what lies beyond
a border."""
MOST_GROUPS = 65535
"""Groups along an axis of a dispatch (maxComputeWorkgroupsPerDimension). A grid of more along x goes on along z."""
