"""The page in a real browser without a network: no error, every event there; zoom, hover and sorting work; it fits the window.

Where there is no chromium these tests are skipped and say so; `make tools` installs one.
"""

import os
import shutil
import time

import numpy as np
import pytest
from hand_made import config, pipe
from test_analyse_command import call

from hpcpar.cli import analyse

pytest.importorskip("bokeh")
sync_api = pytest.importorskip("playwright.sync_api")
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as driver:
        found = next(filter(None, map(shutil.which, NAMES)), driver.chromium.executable_path)
        if not os.path.exists(found):
            pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed; make tools installs one")
        launched = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield launched
        launched.close()


class Page:
    """An open page with what it complained about and what it asked for."""

    def __init__(self, browser, path, width=1280):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, offline=True)
        self.page = self.context.new_page()
        self.errors, self.asked = [], []
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda e: self.errors.append(str(e)))
        self.page.on("request", lambda r: self.asked.append(r.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("#timeline[data-shown]", timeout=120_000)
        self.settled()

    def settled(self):
        """Wait until two frames have been drawn since whatever was done."""
        self.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 50))))")

    @property
    def view(self):
        """shown, alone, bars, left, right of the timeline."""
        return {k: float(v) for k, v in self.page.evaluate("({...document.getElementById('timeline').dataset})").items()}

    def changed(self, before):
        """The view once it is another one than before."""
        self.page.wait_for_function("(left) => Number(document.getElementById('timeline').dataset.left) !== left", arg=before["left"])
        self.settled()
        return self.view

    def at(self, ms, rank):
        """Where (ms, rank) is in the window, in pixels."""
        self.page.locator("#timeline").scroll_into_view_if_needed()
        return self.page.evaluate(
            """([x, y]) => { const v = [...Bokeh.index][0], f = v.frame.bbox, r = v.el.getBoundingClientRect(), p = v.model;
            return [r.x + f.x0 + (x - p.x_range.start) / (p.x_range.end - p.x_range.start) * (f.x1 - f.x0),
                    r.y + f.y0 + (p.y_range.end - y) / (p.y_range.end - p.y_range.start) * (f.y1 - f.y0)]; }""",
            [ms, rank],
        )

    def column(self, table, name, sort=False):
        """What a column of the table under a heading shows, top down, after a click on its head if it is to be sorted."""
        section = self.page.locator("section", has=self.page.get_by_role("heading", name=table, exact=True))
        at = section.locator("thead button").all_inner_texts().index(name)
        if sort:
            section.locator("thead button").nth(at).click()
        return section.locator(f"tbody td:nth-child({at + 1})").all_inner_texts()

    def close(self):
        self.context.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = pipe(tmp_path_factory.mktemp("page") / "run", steps=5)
    assert call(analyse, folder, "--html", folder / "page.html") == 0
    return folder / "page.html"


@pytest.fixture(scope="module")
def opened(browser, path):
    page = Page(browser, path)
    yield page
    page.close()


@pytest.fixture
def page(opened, path):
    """The one open page, at the whole of step 3 again."""
    for step in ("1", "3"):
        opened.page.fill("#step", step)
        opened.page.locator("#step").press("Enter")
        opened.settled()
    yield opened
    assert opened.errors == []
    assert opened.asked == [path.as_uri()]  # nothing but itself


def test_the_timeline_has_the_events_of_the_step_and_of_the_run(page):
    assert (page.view["shown"], page.view["alone"]) == (21, 21)  # step 3
    kinds = page.page.evaluate(
        "Object.fromEntries(['F', 'B', 'WAIT'].map((k) => [k, Bokeh.documents[0].get_model_by_name(k).data.left.length - 1]))"
    )
    assert kinds == {"F": 4, "B": 4, "WAIT": 4}
    first = page.view
    page.page.get_by_role("button", name="whole run").click()
    view = page.changed(first)
    assert view["shown"] == 5 * 21 and view["left"] < 0 and view["right"] > 90
    assert "105 events in view" in page.page.inner_text("#view")


def test_wheel_drag_and_buttons_change_the_range(page):
    first = page.view
    page.page.mouse.move(*page.at(45, 0.5))
    page.page.mouse.wheel(0, -400)
    closer = page.changed(first)
    assert closer["right"] - closer["left"] < 0.9 * (first["right"] - first["left"]) and closer["left"] > first["left"]
    x, y = page.at(45, 0.5)
    page.page.mouse.move(x, y)
    page.page.mouse.down()
    page.page.mouse.move(x + 150, y, steps=4)
    page.page.mouse.up()
    moved = page.changed(closer)
    assert moved["left"] < closer["left"] and moved["right"] - moved["left"] == pytest.approx(closer["right"] - closer["left"])
    page.page.get_by_role("button", name="step after").click()
    after = page.changed(moved)
    assert after["left"] < 60 < 70 < after["right"] and after["shown"] == 21 and page.page.input_value("#step") == "4"
    page.page.fill("#step", "1")
    page.page.locator("#step").press("Enter")
    assert page.changed(after)["left"] < 0 <= 10 < page.view["right"]


def test_far_out_events_are_drawn_together_and_none_is_lost(page):
    first = page.view
    page.page.evaluate("Bokeh.documents[0].get_model_by_name('time').setv({bounds: null, start: -1e5, end: 1e5})")
    view = page.changed(first)
    assert view["shown"] == 105 and view["bars"] < 20


def test_what_ended_before_the_view_is_not_in_it(page):
    """The update of rank 0 lasts from 49 to 50 ms, the wait inside it only to 49.5."""
    first = page.view
    page.page.evaluate("Bokeh.documents[0].get_model_by_name('time').setv({start: 49.7, end: 49.9})")
    assert page.changed(first)["shown"] == 2


def test_a_bar_says_what_it_is(page):
    page.page.mouse.move(*page.at(45, 0.4))  # B0 of rank 0, at 44 to 46 ms
    tip = page.page.get_by_text("rank 0, from 44 ms for 2.0000 ms")
    tip.wait_for(timeout=20_000)
    assert "step 3, stage 0, microbatch 0" in tip.inner_text()


def test_tables_sort_by_value_both_ways(page):
    calls = page.column("What was sent", "calls")
    up, down = (page.column("What was sent", "calls", sort=True) for _ in range(2))
    assert up == sorted(calls, key=int) and down == sorted(calls, key=int, reverse=True) and up != down
    assert page.column("What was sent", "bytes", sort=True) == ["500 B", "1000 B", "1000 B", "58.59 KiB"]  # by bytes, not by letters
    assert page.column("Time of the steps by rank", "update, %", sort=True) == ["5.0", "10.0"]  # 0.05 and 0.1
    assert [page.column("Time of the steps by rank", "rank", sort=True) for _ in range(2)] == [["0", "1"], ["1", "0"]]


@pytest.mark.parametrize("width", [1280, 480])
def test_nothing_is_wider_than_the_window(browser, path, tmp_path, width):
    opened = Page(browser, path, width)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    left, top = opened.at(45, 1)
    assert 0 < left < width and top > 0
    opened.page.mouse.move(*opened.at(45, 0.4))
    tip = opened.page.get_by_text("rank 0, from 44 ms")
    tip.wait_for(timeout=20_000)
    box = tip.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= width
    text = opened.page.evaluate("[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]")
    assert text == ["rgb(17, 17, 17)", "rgb(255, 255, 255)"]
    assert opened.errors == []
    opened.close()


@pytest.mark.long
def test_a_million_events_are_a_page_that_opens(browser, tmp_path):
    """64 ranks: the page is under 20 MB and holds every event; how long it takes is printed."""
    from hpcpar.trace.index import write_index
    from hpcpar.trace.schema import Kind
    from hpcpar.trace.writer import Writer

    ranks, count, rng = 64, 15_625, np.random.default_rng(1)
    described = {"config": config(plan={"dp": 8, "pp": 8, "microbatches": 8}, train={"batch": 64})}
    for rank in range(ranks):
        with Writer(tmp_path, rank, ranks, described) as writer:
            kinds = rng.choice([Kind.F, Kind.B, Kind.SEND, Kind.RECEIVE, Kind.COLLECTIVE, Kind.WAIT], count).tolist()
            gaps = rng.integers(10_000, 3_000_000, count)
            starts = np.cumsum(gaps).tolist()
            for i, (kind, start, gap) in enumerate(zip(kinds, starts, gaps.tolist(), strict=True)):
                writer.step = 1 + i // 625
                writer.record(kind, start, start + gap // 2, rank // 8, i % 8, peer=rank ^ 1 if kind in (7, 8) else -1, bytes=4096)
    write_index(tmp_path, ranks, described)
    begun = time.perf_counter()
    assert call(analyse, tmp_path, "--html", tmp_path / "page.html") == 0
    made = time.perf_counter() - begun
    size = (tmp_path / "page.html").stat().st_size
    begun = time.perf_counter()
    opened = Page(browser, tmp_path / "page.html")
    shown = time.perf_counter() - begun
    print(f"{ranks * count:,} events: analysed and written in {made:.1f} s, {size / 1e6:.1f} MB, opened in {shown:.1f} s")
    first = opened.view
    opened.page.get_by_role("button", name="whole run").click()
    assert opened.changed(first)["shown"] == ranks * count and opened.errors == []
    assert size < 20e6
    opened.close()
