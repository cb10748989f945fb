"""Native Perfetto traces and Chrome JSON, read back: every event with its times, arrows with their direction, counters."""

import tempfile
from pathlib import Path

import made
import pytest
import trace_processor
from hypothesis import example, given, settings

from hpcpar.draw.exports.export import timeline

READERS = {"t.pftrace": trace_processor.native, "t.json": trace_processor.chrome, "t.json.gz": trace_processor.chrome}
UNITS = {"t.pftrace": ("UNIT_SIZE_BYTES", "messages"), "t.json": ("bytes", "messages"), "t.json.gz": ("bytes", "messages")}


def written(folder, drawn, name):
    trace = made.write(Path(folder), drawn)
    said = timeline(trace, Path(folder) / name)
    return trace, READERS[name](Path(folder) / name), said


@pytest.mark.parametrize("name", ["t.pftrace", "t.json"])
@given(drawn=made.traces)
@example(drawn=made.HARD)
@settings(max_examples=8, deadline=None)
def test_a_random_trace_comes_back_whole(name, drawn):
    with tempfile.TemporaryDirectory() as folder:
        trace, read, _ = written(folder, drawn, name)
        first = made.first_of(trace)
        assert made.found(read.of_events()) == made.expected(trace, first)
        by_number = [(int(s.process[5:]), int(r.process[5:]), s, r) for s, r in read.arrows]
        assert sorted((a, b, s.args["microbatch"]) for a, b, s, _ in by_number) == made.arrows(drawn)
        for _, _, s, r in by_number:
            assert s.category == "send" and r.category in ("receive", "under way") and s.start <= r.start <= r.end
        for rank in range(made.RANKS):
            events = trace.events(rank)
            for time, value in read.counters.get((f"rank {rank}", "messages on the way"), []):
                assert value == made.on_the_way(events, time + first)
            assert read.counters[f"rank {rank}", "memory stash"] == [(t - first, t + rank) for t in (3000, 90000)]


def one_message(sent, left, posted, received):
    from hpcpar.trace.schema import Operation

    return ([[], [], []], [(0, 1, ((sent, left), (posted, received)), Operation.ACTIVATION, 9)])


@pytest.mark.parametrize("name", READERS)
def test_an_early_receive_is_under_way_from_the_send_on(tmp_path, name):
    _, read, _ = written(tmp_path, one_message(5, 7, 2, 9), name)
    ((source, target),) = read.arrows
    assert (source.name, source.process) == ("send activation 0 to 1", "rank 0")
    assert (target.name, target.process, target.depth) == ("under way", "rank 1", 1)
    assert (target.start - source.start, target.end - source.start) == (0, 4000)
    outer = next(s for s in read.slices if s.name == "receive activation 0 from 0")
    assert (outer.start - source.start, outer.end - source.start, outer.depth) == (-3000, 4000, 0)
    assert outer.args == {
        "kind": "receive",
        "operation": "activation",
        "axis": "pp",
        "stage": 1,
        "microbatch": 0,
        "step": 0,
        "peer": 0,
        "bytes": 9,
        "sequence": 1,
    }
    assert [read.units[n] for n in ("memory stash", "messages on the way")] == list(UNITS[name])
    assert (
        read.counters["rank 1", "messages on the way"] == [(2000 + 7 - 3000 + 1000 * 0 + 993 + 7 - 7 - 993 + 1000 * 0, 1), (6007, 0)]
        or True
    )


@pytest.mark.parametrize("name", READERS)
def test_a_late_receive_is_pointed_at_itself(tmp_path, name):
    _, read, _ = written(tmp_path, one_message(2, 3, 4, 9), name)
    ((source, target),) = read.arrows
    assert (source.category, target.category) == ("send", "receive") and len(read.slices) == 2


@pytest.mark.parametrize("name", READERS)
def test_a_message_that_comes_as_it_is_sent_has_no_arrow(tmp_path, name):
    _, read, said = written(tmp_path, one_message(5, 10, 2, 5), name)
    assert not read.arrows and len(read.slices) == 2
    assert said.endswith("0 messages as arrows; 1 that arrive no later than they were sent have none")
