"""One run as a trace that chrome://tracing and ui.perfetto.dev show: the trace-event format's JSON object, complete
events in microseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft_testing.bench.profile import Profile

PROCESS, THREAD = 1, 1


def as_trace(profile: Profile) -> dict[str, Any]:
    """The run whose length is the median. Kernels follow each other on the calling thread, where what is between two is
    the segment's own work, or on a device, whose clock it is then.
    """
    totals = profile.totals()
    run = sorted(range(profile.runs), key=lambda k: totals[k])[profile.runs // 2]
    where = (
        f"device {', '.join(profile.devices)}"
        if profile.devices
        else f"calling thread, kernels on {profile.threads} thread(s)"
    )
    events: list[dict[str, Any]] = [
        {
            "name": "process_name",
            "ph": "M",
            "pid": PROCESS,
            "tid": THREAD,
            "ts": 0,
            "args": {"name": f"{profile.model} on {profile.target}"},
        },
        {"name": "thread_name", "ph": "M", "pid": PROCESS, "tid": THREAD, "ts": 0, "args": {"name": where}},
        _slice(
            profile.model, "run", 0.0, totals[run], {"runs measured": profile.runs, "kernel calls": len(profile.calls)}
        ),
    ]
    for number, call in enumerate(profile.calls):
        start, end = call.start[run], call.end[run]
        args: dict[str, Any] = {
            "number": number,
            "rule": call.rule,
            "nodes": list(call.nodes),
            "bytes": None,
            "flop": call.flop,
        }
        if call.flop is not None:
            args["bytes"] = call.constants + call.others
            if end > start:
                args["GFLOP/s"] = call.flop / (end - start) / 1e9
                args["GB/s"] = args["bytes"] / (end - start) / 1e9
        events.append(_slice(call.kernel, "kernel", start, end, args))
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {"model": profile.model, "target": profile.target},
    }


def _slice(name: str, category: str, start: float, end: float, args: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "pid": PROCESS,
        "tid": THREAD,
        "ts": start * 1e6,
        "dur": (end - start) * 1e6,
        "args": args,
    }
