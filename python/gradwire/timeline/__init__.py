"""Timelines: what every partition went through on every rank, on one clock.

Each process writes its part (`part.py`); `clocks.py` finds how their clocks stand to each other; `merge.py` makes one
`Timeline` of the parts, `trace_event.py` writes and reads it as a file that ui.perfetto.dev opens, and `steps.py` and
`summary.py` say where the steps went.
"""
