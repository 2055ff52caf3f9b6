"""`gradwire tune`: which settings make a job's own steps shorter, found by running it.

`search_space.py` says what may be set; `race.py`, `duel.py` and `search.py` decide what to run next and what to
believe, and know neither jobs nor clocks; `launches.py` and `step_times.py` run and time; `start.py` asks the simulator
where to begin.
"""
