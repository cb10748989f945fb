"""PipeDream (Narayanan et al. 2019): 1F1B without a flush; weight stashing alone, or with vertical sync.

Stashing: microbatch k of a straight pipeline uses version max(0, k - (p - 1 - s)) on stage s, in both passes.
Vertical sync: the version that is newest on the input stage, max(0, k - (p - 1)), on all stages.

    hpcpar draw pipedream --stages 3 --microbatches 5
    from 0
    0 |F0@0 F1@0 F2@0 ................... B0@0----- F3@1 B1@0----- F4@2 B2@0-----
    1 |.... F0@0 F1@0 ......... B0@0----- F2@1 B1@0----- F3@2 B2@1----- F4@3 B3@2-
    2 |......... F0@0 B0@0----- F1@1 B1@1----- F2@2 B2@2----- F3@3 B3@3----- F4@4
    from 15
    0 |.... B3@1----- .... B4@2-----
    1 |---- .... B4@3----- .........
    2 |B4@4----- ...................
    cost 21, work 15, makespan 21; bubble 0.2857 of the total, 0.4000 of the ideal,
      0.0000 of the total in the steady state
    peak stash, by rank: 3 2 1
    peak weight versions, by rank: 3 2 1

    hpcpar draw pipedream-vertical --stages 3 --microbatches 5
    from 0
    0 |F0@0 F1@0 F2@0 ................... B0@0----- F3@1 B1@0----- F4@2 B2@0-----
    1 |.... F0@0 F1@0 ......... B0@0----- F2@0 B1@0----- F3@1 B2@0----- F4@2 B3@1-
    2 |......... F0@0 B0@0----- F1@0 B1@0----- F2@0 B2@0----- F3@1 B3@1----- F4@2
    from 15
    0 |.... B3@1----- .... B4@2-----
    1 |---- .... B4@2----- .........
    2 |B4@2----- ...................
    cost 21, work 15, makespan 21; bubble 0.2857 of the total, 0.4000 of the ideal,
      0.0000 of the total in the steady state
    peak stash, by rank: 3 2 1
    peak weight versions, by rank: 3 2 1
    peak gradient buffers, by rank: 1 2 3
"""

from __future__ import annotations

from hpcpar.schedule.family import Asynchronous

FAMILIES = {"pipedream": Asynchronous("stashing"), "pipedream-vertical": Asynchronous("vertical")}
