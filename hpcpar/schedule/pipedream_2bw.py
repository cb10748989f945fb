"""PipeDream-2BW (Narayanan et al. 2021): 1F1B without a flush, a version every m microbatches, applied with a delay of one.

W(t+1) = W(t) - lr grad(W(t-1)): microbatch k (from 0) uses version max(0, floor(k / m) - 1) in both passes on all stages.

    hpcpar draw pipedream-2bw --stages 2 --microbatches 2 --batches 3
    from 0
    0 |F0@0 F1@0 ......... B0@0----- F2@0 B1@0----- F3@0 B2@0----- F4@1 B3@0-----
    1 |.... F0@0 B0@0----- F1@0 B1@0----- F2@0 B2@0----- F3@0 B3@0----- F4@1 B4@1-
    from 15
    0 |F5@1 B4@1----- .... B5@1-----
    1 |---- F5@1 B5@1----- .........
    cost 21, work 18, makespan 21; bubble 0.1429 of the total, 0.1667 of the ideal,
      0.0000 of the total in the steady state
    peak stash, by rank: 2 1
    peak weight versions, by rank: 2 1
    peak gradient buffers, by rank: 2 2
"""

from __future__ import annotations

from hpcpar.schedule.family import Asynchronous

FAMILIES = {"pipedream-2bw": Asynchronous("2bw", grouped=True)}
