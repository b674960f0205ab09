"""The HTML page of a report: escaping, sorting values, flags; translations compared."""

import dataclasses
import unicodedata
from html.parser import HTMLParser

import pytest

from fairseq_diverse.cli import main
from fairseq_diverse.experiments.kinds.kind import KINDS
from fairseq_diverse.experiments.kinds.lines import Line
from fairseq_diverse.experiments.run import DataSet, Run
from fairseq_diverse.experiments.tables.load import load_table
from fairseq_diverse.reports.page import RowInfo, marked, readable, render, row_info, with_values
from fairseq_diverse.reports.side_by_side import Part, Sentence, SideBySide, compare, side_by_side, words
from fairseq_diverse.support.pictures import new_figure

HOSTILE = "<script>x</script>\"'><b onclick=y>&amp; {{ 7 * 7 }} </title></style>"


class Elements(HTMLParser):
    """Counts of elements, and all their attributes; ends must fit to starts."""

    def __init__(self, page: str):
        super().__init__()
        self.found: dict[str, int] = {}
        self.attributes: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.found[tag] = self.found.get(tag, 0) + 1
        self.attributes += attributes
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def page(text: str) -> Elements:
    """A page with a text wherever texts from outside are."""
    found = SideBySide([Sentence(1, text, f"{text} more", {text: f"a {text}", "base": text})], 9, {text: 1, "base": 2})
    translations = [marked(found, {text: "base", "base": "base"}, text)]
    rows = [RowInfo(text, text, [text], [text], {text: "runs/a"})]
    blocks = [([[text, "x"], [text, "1"]], text, [text]), ([[text], [text]], text, [])]
    return Elements(render(blocks, {text: new_figure(2, 2)}, rows, translations))


def test_texts_add_no_element_and_no_attribute():
    hostile, harmless = page(HOSTILE), page("harmless")
    assert hostile.found == harmless.found and [a for a, _ in hostile.attributes] == [a for a, _ in harmless.attributes]
    shown = [text.strip() for text in hostile.texts if HOSTILE in text]
    assert len(shown) >= 14 and "49" not in "".join(shown)
    assert {value for name, value in hostile.attributes if name == "title"} == {"missing: more"}


def test_a_page_needs_no_other_file():
    found = page("harmless")
    sources = [value for name, value in found.attributes if name in ("src", "href")]
    assert {source.split(",")[0] for source in sources} == {"data:image/svg+xml;base64", "#row0", "runs/a"}
    (policy,) = (value for name, value in found.attributes if name == "content" and "default-src" in value)
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-") and "unsafe" not in policy
    assert "url(" not in "".join(found.texts) and "@import" not in "".join(found.texts)


def test_text_cannot_steer_a_page():
    """Breaks and controls become spaces; joiners stay in texts, whose direction ends with their element."""
    found = page("a\x1b[31m\r\nb\u2028c\u202ed\x00e")
    texts = [text for text in found.texts if "[31m" in text]
    assert texts and not any(unicodedata.category(a) == "Cc" for t in texts for a in t.strip().replace("\n", ""))
    assert readable("क्\u200dष \u202eabc\x07") == "क्\u200dष \u202eabc "
    assert sum(name == "dir" for name, _ in found.attributes) == 4  # source, reference, two translations


def test_columns_of_numbers_have_values_to_sort_by():
    cells = [
        ["row", "parameters", "Δ BLEU", "verdict", "interval"],
        ["8", "1,522,176", "+0.50 ± 0.2* (p = 0.03)", "", "-1.0 to 2"],
    ]
    cells += [["9", "12.6M", "-1.25 (one seed)", "not resolved", ""], ["10", "not run", "", "helps", "< 0.001"]]
    values = [[value for _, value in row] for row in with_values(cells)]
    numbers = [[None, 1522176, 0.5, None, -1], [None, 12.6e6, -1.25, None, None], [None] * 4 + [0.001]]
    assert values == numbers
    assert [[text for text, _ in row] for row in with_values(cells)] == cells[1:]


def test_changes_are_the_flags_that_differ_from_the_baseline(table):
    other_data = ("{dropout: 0.3,", "{data: wmt14_en_de, dropout: 0.3,")
    first, second = load_table(table(other_data), settings=["generate.beam=4"]).rows.values()
    info = row_info(second, first, {})
    assert info.changes == ["data wmt14_en_de", "--dropout 0.3", "--fp16"] and info.baseline == "first"
    assert "--arch transformer" in info.flags and not any("share-all" in flag for flag in info.flags)
    assert row_info(first, second, {}).changes == ["data multi30k_en_de", "--dropout 0.2", "without --fp16"]
    wider = load_table(table(other_data), settings=["generate.beam=5"]).rows["first"]
    assert row_info(wider, first, {}).changes == ["generate: --beam 5"]
    assert not row_info(first, first, {}).changes
    further = dataclasses.replace(first, pretrained="a.pt", lenpen=("0.6", "1"))
    info, back = row_info(further, first, {}), row_info(first, further, {})
    assert info.changes == ["pretrained a.pt", "length penalties 0.6, 1"] == info.flags[-2:]
    assert back.changes == ["no pretrained", "no length penalties"]


def test_translations_are_those_of_the_first_seed_of_each_row_and_the_page_says_which(table, tmp_path):
    (tmp_path / "text").mkdir()
    for language in ("en", "de"):
        (tmp_path / f"text/test.{language}").write_text(f"{language}\n")
    data, runs = DataSet("d", tmp_path, "en", "de", "h"), []
    for row, seeds in zip(load_table(table()).rows.values(), ((10, 2), (3, 4)), strict=True):
        for seed in seeds:
            runs.append(Run(row, seed, data, True, tmp_path / f"run-{row.name}/seed{seed}"))
            runs[-1].directory.mkdir(parents=True)
            (runs[-1].directory / "summary.json").touch()
            (runs[-1].directory / "test.hyp").write_text(f"seed {seed}\n")
    found = side_by_side(runs[::2], 1)
    assert found.sentences[0].translations == {"first": "seed 2", "second": "seed 3"}
    note = marked(found, {"first": "first", "second": "first"}, "").note
    assert note == "1 of 1 sentences; seeds: first 2, second 3."


def test_published_figures_are_drawn_without_runs(tmp_path, capsys):
    for name, drawn in (("wang2021-table1", True), ("li2021-table7", False)):
        asked = ["report", name, "--runs", str(tmp_path), "--format", "html", "--out", str(tmp_path / "page.html")]
        assert main(asked) == 0 and "no row has a finished run" in capsys.readouterr().err
        assert ("Accuracy by number of parameters" in (tmp_path / "page.html").read_text()) == drawn


def test_published_parameters_are_drawn_in_millions(table):
    row = dataclasses.replace(load_table(table()).rows["first"], published={"parameters": "850K", "top1": 70.5})
    ((axis,),) = [figure.axes for figure in KINDS["images"].pictures([Line(row=row, seeds=0)]).values()]
    assert axis.lines[0].get_xydata().tolist() == [[0.85, 70.5]]


def test_a_table_of_grids_names_best(tmp_path, capsys):
    row = "title: t\ndata: multi30k_en_de\nsize: tiny\nrows: {a: {grid: {lr: [0.001, 0.002]}}}\n"
    (tmp_path / "t.yaml").write_text(row)
    for more, named in (([], True), (["--best"], False)):
        assert main(["report", str(tmp_path / "t.yaml"), "--runs", str(tmp_path), *more]) == 0
        said = "give the same flags here; --best shows one point of each grid\n"
        assert capsys.readouterr().err.endswith(said) == named


def test_words_are_the_text():
    assert words("Don't: 我爱New York…") == ["Don", "'", "t", ":", " ", "我", "爱", "New", " ", "York", "…"]
    for text in ("", "  a  b\t", "कि़ताब, قَلَم", "ไทย"):
        assert "".join(words(text)) == text
    assert words("5€+1") == ["5", "€", "+", "1"]


@pytest.mark.parametrize(
    ("text", "reference", "expected"),
    [
        ("Das ist ein Haus.", "Das ist ein Haus.", [Part("Das ist ein Haus.", (), {})]),
        ("Das war ein Haus.", "Das ist ein Haus.", [("Das ", ()), ("war", "r"), (" ein Haus.", ())]),
        ("Er war nie da", "Er ist da", [("Er ", ()), ("war nie", "r"), (" da", ())]),
        ("Er da", "Er ist nicht da", [("Er ", ()), Part("da", (), {"reference": "ist nicht"})]),
        ("Er ist", "Er ist da .", [("Er ist", ()), Part("", (), {"reference": "da ."})]),
        ("", "Er", [Part("", (), {"reference": "Er"})]),
        ("我爱城", "我不爱城", [("我", ()), Part("爱城", (), {"reference": "不"})]),
    ],
)
def test_differences_to_the_reference(text, reference, expected):
    kinds = {"r": ("reference",), (): ()}
    whole = [part if isinstance(part, Part) else Part(part[0], kinds[part[1]], {}) for part in expected]
    assert compare(text, {"reference": reference}) == whole


def test_frequent_words_are_compared_and_two_texts_kept_apart():
    text = " a b" * 200
    assert compare(f"x{text}", {"reference": f"y{text}"}) == [Part("x", ("reference",), {}), Part(text, (), {})]
    text, reference, baseline = "ein alter Hund bellt laut", "ein Hund bellt", "ein alter Hund singt sehr laut"
    parts = compare(text, {"reference": reference, "baseline": baseline})
    assert "".join(part.text for part in parts) == text
    for kind, words_there in (("reference", ["alter", "laut"]), ("baseline", ["bellt"])):
        assert [part.text.strip() for part in parts if kind in part.kinds] == words_there
