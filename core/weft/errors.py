"""Errors of the compiler. Those of the runtime (`weft_runtime.errors`) are here too."""

from __future__ import annotations

from weft_runtime.errors import (
    ArchiveError,
    CacheWarning,
    ExecutionError,
    ExprError,
    InputError,
    SettingError,
    WeftError,
    enough_memory,
    expect,
    expect_path,
    fill,
    from_signal,
    literal,
    nearest,
    no_thread,
    raised_in,
    shown,
    shown_lines,
)

__all__ = [
    "ArchiveError", "CacheWarning", "ChoiceError", "CodegenError", "ExecutionError", "ExprError", "FrontendError",
    "GraphError",
    "InputError", "LoopError", "LoweringError", "ParseError", "PluginError", "ScheduleError", "ScheduleWarning",
    "SettingError", "TargetError", "TensorError", "UnsupportedError", "WeftError", "enough_memory", "expect",
    "expect_path", "fill", "from_signal", "literal", "nearest", "no_thread", "raised_in", "shown", "shown_lines",
]  # fmt: skip


class TargetError(WeftError):
    """A target string, option or machine that cannot be used."""


class PluginError(WeftError):
    """A plugin that is missing, broken, out of range, or clashes with another."""


class FrontendError(WeftError):
    """A model that cannot be read or imported."""


class UnsupportedError(FrontendError):
    """A well-formed model that uses what is not supported; lists everything at once."""


class GraphError(WeftError):
    """An ill-formed or ill-typed graph."""


class TensorError(WeftError):
    """An ill-formed tensor expression."""


class LoopError(WeftError):
    """An ill-formed loop program."""


class ParseError(WeftError):
    """Text of an IR that does not parse; `where` shows the line and column."""


class ScheduleError(WeftError):
    """A schedule step that may not act; `where` shows the program with the place marked."""


class ChoiceError(ScheduleError):
    """A value that a record or a tuner gives a choice, and that the choice cannot have."""


class PluginWarning(UserWarning):
    """A hook of an installed plugin failed, and what follows goes on without its result."""


class ScheduleWarning(UserWarning):
    """A rule that offered to schedule a kernel met a step that may not act, so another rule took it, or what it counted
    on could not be done, or a record could not be followed, or none of those given is of the model: results are right,
    the code may be slow. Also: what a rule says of costs cannot be followed.
    """


class LoweringError(WeftError):
    """A group of operators that cannot be lowered."""


class CodegenError(WeftError):
    """A program that cannot be turned into machine code."""
