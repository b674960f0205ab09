"""A report's page in Chromium: nothing is run or loaded from outside, columns sort, light and dark, on a phone."""

import datetime
import fcntl
import itertools
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fairseq_diverse.reports.page import RowInfo, marked, render
from fairseq_diverse.reports.side_by_side import Sentence, SideBySide
from fairseq_diverse.support.pictures import new_figure

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]


class Page:
    """A file in a tab of its own; ``events`` are what the browser said of it, above all errors and requests."""

    def __init__(self, path: Path, profile: Path):
        assert CHROMIUM
        theirs_in, self.out = os.pipe()
        self.read, theirs_out = os.pipe()

        def as_three_and_four():  # what the protocol reads and writes
            ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs_in, theirs_out)]
            for end, number in zip(ends, (3, 4), strict=True):
                os.dup2(end, number)

        command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, close_fds=False, preexec_fn=as_three_and_four, **quiet)
        os.close(theirs_in)
        os.close(theirs_out)
        self.numbers, self.rest, self.session = itertools.count(1), b"", {}
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.session = {"sessionId": session}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters, **self.session}
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def run(self, script: str) -> Any:
        """The value of a script."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def close(self) -> None:
        os.close(self.out)
        os.close(self.read)
        self.process.kill()
        self.process.wait()

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            added = os.read(self.read, 1 << 16)
            assert added, "the browser ended"
            self.rest += added
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)


HOSTILE = "</td><script>window.pwned = 1</script><img src=https://example.org/x onerror='window.pwned = 1'>\"'"
CELLS = [
    ["row", "parameters", "BLEU", "verdict", HOSTILE],
    ["heads-8", "1,522,176", "36.57 ± 0.86", "helps", HOSTILE],
    ["heads-32", "900", "4.1** (p < 0.001)", "", ""],
    [HOSTILE, "not run", "", "", ""],
    ["heads-2", "12.6M", "-1.5", "hurts", "x"],
]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    figure = new_figure(12, 2)
    figure.add_subplot(title="a")
    translated = {HOSTILE: f"Der Hund bellt {HOSTILE}", "heads-8": "Hund bellt laut"}
    found = SideBySide([Sentence(1, HOSTILE, "Ein alter Hund bellt", translated)], 9, {HOSTILE: 1, "heads-8": 2})
    translations = [marked(found, {HOSTILE: "heads-8", "heads-8": "heads-8"}, HOSTILE)]
    run = {"seed 1": "runs/a%3Ab"}
    rows = [RowInfo(name, "heads-8", [HOSTILE], [f"--a {'b' * 300}"], run) for name in ("heads-8", HOSTILE)]
    date = datetime.datetime(2026, 1, 2, 3, 4, tzinfo=datetime.UTC)
    wide = [[str(n) for n in range(60)]] * 2
    text = render([(CELLS, HOSTILE, [HOSTILE]), (wide, "wide", [])], {HOSTILE: figure}, rows, translations, date=date)
    (folder / "page.html").write_text(text)
    page = Page(folder / "page.html", folder / "profile")
    yield page
    page.close()


def test_nothing_hostile_runs_and_nothing_is_loaded(page):
    assert page.run("window.pwned") is None and page.run("document.querySelectorAll('script').length") == 1
    assert page.run("document.images.length") == 1 and page.run("document.images[0].naturalWidth > 500")
    requests = [e["params"]["request"]["url"] for e in page.events if e.get("method") == "Network.requestWillBeSent"]
    assert [url.split(":")[0] for url in requests] == ["file", "data"]
    said = [event for event in page.events if event.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown")]
    assert not said
    assert page.run("document.querySelector('h1').textContent.trim()") == HOSTILE
    assert page.run("document.querySelector('time').dateTime") == "2026-01-02T03:04:00+00:00"
    page.run("document.head.append(Object.assign(document.createElement('script'), {textContent: 'window.pwned = 2'}))")
    page.run("document.body.append(Object.assign(new Image(), {src: 'https://example.org/y'}))")
    assert page.run("window.pwned") is None  # the page's policy forbids what escaping might have missed
    assert not any(url.startswith("http") for url in requests) and any(
        "Content Security Policy" in str(event.get("params")) for event in page.events
    )


@pytest.mark.parametrize(
    ("column", "orders"),
    [
        (0, [["heads-2", "heads-8", "heads-32"], ["heads-32", "heads-8", "heads-2"]]),
        (1, [["heads-32", "heads-8", "heads-2"], ["heads-2", "heads-8", "heads-32"]]),
        (2, [["heads-2", "heads-32", "heads-8"], ["heads-8", "heads-32", "heads-2"]]),
        (3, [["heads-8", "heads-2", "heads-32"], ["heads-2", "heads-8", "heads-32"]]),
    ],
)
def test_columns_sort(page, column, orders):
    """By numbers or words; cells without a value come last both ways, and a third click restores the order."""
    clicks = [*orders, ["heads-8", "heads-32", "heads-2"]]
    for order, direction in zip(clicks, ("ascending", "descending", None), strict=True):
        page.run(f"document.querySelectorAll('thead')[0].querySelectorAll('button')[{column}].click()")
        shown = page.run("[...document.querySelector('tbody').rows].map((row) => row.cells[0].textContent)")
        assert [name for name in shown if name != HOSTILE] == order
        if column and direction:
            assert shown[-1] == HOSTILE or column == 3  # there two cells are empty
        sorted_by = page.run("[...document.querySelectorAll('th')].map((cell) => cell.getAttribute('aria-sort'))")
        assert sorted_by[column] == direction and sum(map(bool, sorted_by)) == bool(direction)


def test_marked_are_words_that_the_chosen_text_lacks(page):
    marked = """[...document.querySelectorAll('dd span')].filter((part) => getComputedStyle(part).display !== 'none' &&
        getComputedStyle(part).backgroundColor !== 'rgba(0, 0, 0, 0)').map((part) => part.textContent)"""
    against_reference = page.run(marked)
    assert against_reference[0] == "Der" and against_reference[-2:] == ["␣", "laut"]
    assert page.run("document.querySelector('dd .gap').title") == "missing: Ein alter"
    page.run("{const choice = document.querySelector('select'); choice.value = 'baseline';"
             "choice.dispatchEvent(new Event('change'))}")  # fmt: skip
    assert page.run(marked) == ["Der", HOSTILE]  # and nothing in the baseline's own translation


CONTRAST = """(() => {
    const lightness = (color) => color.match(/\\d+/g).slice(0, 3).map((part) => part / 255)
        .map((part) => (part <= 0.04 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
        .reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0);
    const back = (element) => { for (; element; element = element.parentElement) {
        const color = getComputedStyle(element).backgroundColor;
        if (color !== 'rgba(0, 0, 0, 0)') return lightness(color); } };
    return Math.min(...[...document.querySelectorAll('h1, td, td a, li, dd span, dt, code, summary')].map((element) => {
        const [a, b] = [lightness(getComputedStyle(element).color), back(element)].sort();
        return (b + 0.05) / (a + 0.05); })); })()"""


def test_light_and_dark_can_be_read(page):
    backgrounds = set()
    for scheme in ("light", "dark"):
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        backgrounds.add(page.run("getComputedStyle(document.body).backgroundColor"))
        assert page.run(CONTRAST) >= 4.5  # WCAG 2, level AA
    assert len(backgrounds) == 2


def test_a_phone_needs_no_sideways_scrolling_but_in_tables(page):
    page.call("Emulation.setDeviceMetricsOverride", width=360, height=740, deviceScaleFactor=2, mobile=True)
    assert page.run("document.documentElement.scrollWidth") == 360
    assert page.run("[...document.querySelectorAll('.scroll')].map((one) => one.scrollWidth > one.clientWidth)")[1]
    sizes = "[...document.querySelectorAll('td, dd, li, code')].map((x) => parseFloat(getComputedStyle(x).fontSize))"
    assert min(page.run(sizes)) >= 13
    assert page.run("document.querySelector('td').getBoundingClientRect().width") < 180
