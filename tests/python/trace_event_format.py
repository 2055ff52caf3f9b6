"""What a trace must be for ui.perfetto.dev to open it."""

from __future__ import annotations


def expect_trace_event_format(found: object) -> None:
    """What Google's "Trace Event Format" (2016) asks of a file in the object form."""
    assert isinstance(found, dict)
    last: dict[tuple[int, int], float] = {}
    for event in found["traceEvents"]:
        assert isinstance(event["name"], str)
        assert event["ph"] in "XMstf"
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "X":
            assert event["dur"] >= 0
            thread = event["pid"], event["tid"]
            assert event["ts"] >= last.get(thread, 0) - 1e-6, "spans of one thread overlap"
            last[thread] = event["ts"] + event["dur"]
        elif event["ph"] == "M":
            assert event["name"] in ("process_name", "process_sort_index", "thread_name", "thread_sort_index")
            assert event["args"]
        else:
            assert event["id"]
            assert event["cat"]
