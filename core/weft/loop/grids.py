"""Loop kinds, scopes and intrinsics of programs for groups of threads. Targets define the form of these programs and
lower them.

Threads of a warp run in step. An asynchronous copy runs concurrently with the thread that began it."""

from __future__ import annotations

from weft.loop.nodes import IntrinsicCall, Let, Stmt

BLOCK_AXES = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
"""Kinds of loops over the groups of a grid."""
THREAD_AXES = ("threadIdx.x", "threadIdx.y", "threadIdx.z")
"""Kinds of loops over the threads of a group."""
FRAGMENT = "fragment"
"""Scopes of what the threads of a warp hold together begin so: "fragment", "fragment.a" …"""
WHOLE_WARP = "whole_warp"
"""Call of a condition on a thread's number along x: true for all of them where instructions are the warp's together,
for the first where one does its work."""


SHUFFLE = "shuffle_xor"
"""shuffle_xor(value, bit): what the thread of the same warp has as `value` whose number differs in `bit`, a power of
two. Only a Let has one as its value, and all threads of the warp come to it."""


COPY_ASYNC, AWAIT_COPIES = "copy_async", "await_copies"
"""copy_async(to[index], from[index], bytes): a thread begins to copy, and does not wait; await_copies(): what it has
begun to copy is there."""
COPY_BOX = "copy_box"
"""copy_box(to[index], from[0, …], start…, extents…, strides…, sizes…): as copy_async, of a whole box, by thread 0 of a
group. All threads come to await_copies().

A tensor is `from` seen with some dims, the nearest first: elements `strides` apart, `extents` of them. The box of
`sizes` elements that starts at `start` lies at `to` without gaps, the first dim fastest. What lies outside of the
tensor is zero.
"""
BOX = "box"
"""The annotation of serial loops that copy a box, all of them: each is one dim of it. They mean what loops mean; a
target may take them as one bulk copy, so passes leave them whole."""


def is_shuffle(stmt: Stmt) -> bool:
    """Whether a statement is a Let of what another thread has."""
    return isinstance(stmt, Let) and isinstance(stmt.value, IntrinsicCall) and stmt.value.name == SHUFFLE


def private(scope: str) -> bool:
    """Whether each thread has its own part of what a group allocates in a memory."""
    return scope not in ("global", "shared")
