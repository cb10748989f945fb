"""The page as a file: what it holds, what it says where something is missing, and what is refused."""

import json
import re
import sys

import pytest
from hand_made import PIPE, pipe
from test_analyse_command import call

import hpcpar.trace
from hpcpar.analyse.report import report
from hpcpar.cli import analyse
from hpcpar.draw import page
from hpcpar.draw.page.tables import grid, header, tables, text
from hpcpar.errors import PlanError

pytest.importorskip("bokeh")


def made(folder, *words):
    """The page of a run as text."""
    assert call(analyse, folder, "--html", folder / "page.html", *words) == 0
    return (folder / "page.html").read_text()


def test_a_page_is_one_file_with_everything_inside(tmp_path, capsys):
    html = made(pipe(tmp_path / "run"))
    assert "the page is" in capsys.readouterr().err
    outside = re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL)
    assert not re.findall(r"(?:src|href|url)\s*[=(]\s*[\"']?(?!data:,)[^\"'#\s>]+", outside)
    events = json.loads(re.search(r'id="events">(.*?)</script>', html).group(1))
    assert events["rows"] == events["events"] == 63 and events["chosen"] == [2, 2]
    assert "This page holds all 63 events of the run." in html
    for words in (
        "20.0% of a step (2 ms)</b>: the pipeline fills and drains",
        "What would change it: plan.microbatches = 4",
        "vocabulary = 16",
    ):
        assert words in html, words


def test_the_steps_of_the_page_can_be_chosen(tmp_path):
    html = made(pipe(tmp_path / "run"), "--step", "1:2")
    assert json.loads(re.search(r'id="events">(.*?)</script>', html).group(1))["chosen"] == [1, 2]


def test_a_name_is_text_and_never_markup(tmp_path):
    folder = tmp_path / "a<b>&'\"$x"
    described = {**PIPE, "versions": {"</script><i>": "<script>alert(1)</script>"}}
    html = made(pipe(folder, description=described))
    assert "<b>&" not in html.split("<script>")[0] and "a&lt;b&gt;&amp;" in html
    assert "alert(1)</script>" not in html and "&lt;script&gt;alert(1)" in html


def test_no_json_ends_its_script_element():
    assert page._json({"a": "</script>"}) == '{"a":"\\u003c/script>"}'


def test_a_missing_rank_is_named(tmp_path):
    folder = pipe(tmp_path / "run")
    (folder / "trace.00001.h5").unlink()
    html = made(folder)
    assert "rank 1 is left out: trace.00001.h5 is missing" in html and '"1 missing"' in html


def test_a_run_without_a_step_has_a_page(tmp_path):
    html = made(pipe(tmp_path / "run", steps=0))
    assert "no whole step to tell" in html and "This page holds all 0 events" in html


def test_what_is_merged_is_said(tmp_path):
    trace = hpcpar.trace.open(pipe(tmp_path / "run"))
    lanes = {rank: trace.events(rank) for rank in trace.present}
    steps = [(n, 20_000_000 * n, 20_000_000 * n + 10_000_000) for n in (1, 2, 3)]

    def said(most):
        page.save(tmp_path / "p.html", report(trace), trace.description, "", lanes, steps, (2, 2), most=most)
        return (tmp_path / "p.html").read_text()

    assert "The run has 63 events, more than this page holds one by one. It has step 2 whole; elsewhere" in said(40)
    assert "It has no step whole; elsewhere" in said(10)


def test_what_cannot_be_shown_is_refused(tmp_path, monkeypatch):
    folder = pipe(tmp_path / "run")
    with pytest.raises(PlanError, match="--html shows one run, 2 are given"):
        call(analyse, folder, folder, "--html", tmp_path / "p.html")
    with pytest.raises(PlanError, match="cannot write"):
        call(analyse, folder, "--html", tmp_path / "none" / "p.html")
    for wrong, why in (("9", "step 9 is not in"), ("x", "--step x: write a step"), ("2:1", "ends before it begins")):
        with pytest.raises(PlanError, match=why):
            call(analyse, folder, "--html", tmp_path / "p.html", "--step", wrong)
    monkeypatch.setitem(sys.modules, "bokeh.resources", None)
    with pytest.raises(PlanError, match=r"not installed here .*; pip install 'hpcpar\[page\]'"):
        call(analyse, folder, "--html", tmp_path / "p.html")
    assert not (tmp_path / "p.html").exists()


# tables


def test_a_measure_that_the_page_does_not_know_is_a_table():
    html = tables({"late_senders": {"total_s": 0.25, "worst": None, "pairs": [{"source": 0, "waited_s": 0.002}], "by": {"a": 1}}})
    assert "<h2>Late senders</h2>" in html and "total, ms</th><td>250</td>" in html and "worst</th><td>-</td>" in html
    assert "<h2>Late senders: pairs</h2>" in html and '<td class=number data-v="0.002">2</td>' in html and "by: a</th><td>1</td>" in html


@pytest.mark.parametrize(
    ("name", "value", "words", "shown"),
    [
        ("mean_s", 0.1467, "mean, ms", "146.7"),
        ("tokens_per_s", 27922.3, "tokens/s", "27,922"),
        ("flops_per_s", 1.5e11, "arithmetic, GFLOP/s", "150"),
        ("bytes_per_s", 2e9, "bandwidth, MB/s", "2,000"),
        ("bytes_per_step", 2 << 20, "bytes per step", "2 MiB"),
        ("collective_hidden", 0.661, "collective hidden, %", "66.1"),
        ("clock: bubble_total", 0.2, "clock: bubble total, %", "20.0"),
        ("calls", 1234, "calls", "1,234"),
        ("anything", None, "anything", "-"),
    ],
)
def test_a_name_tells_its_unit(name, value, words, shown):
    assert (header(name), text(name, value)) == (words, shown)


def test_empty_columns_are_left_out_and_long_tables_say_so():
    html = grid([{"rank": 0, "a": 0.0, "b": 1}, {"rank": 1, "a": None, "b": 2}])
    assert ">a<" not in html and ">rank<" in html and ">b<" in html
    assert "the first 500 of 501 rows" in grid([{"rank": r, "b": 1} for r in range(501)])
