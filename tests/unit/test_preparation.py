"""Configuration, cleaning, tokens, subwords and the record of a prepared data set, without fairseq."""
# ruff: noqa: RUF001

import functools
import gzip
import json
import multiprocessing
import os
import re
import signal
import socket
import sys
import unicodedata
from multiprocessing.connection import wait
from types import SimpleNamespace

import pytest
import sacrebleu
import sacremoses
from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode

from fairseq_diverse.preparation import DataConfig, Preprocessing
from fairseq_diverse.preparation.config import SIDE_DEFAULTS
from fairseq_diverse.preparation.pipeline import FILE, FORMAT, SCHEMA
from fairseq_diverse.preparation.raw import count_sentences, name_of_test, sentences, sides
from fairseq_diverse.preparation.steps import Steps, _learn, _train_truecaser, _within, tokenize
from fairseq_diverse.preparation.subwords import Subwords, count_subwords
from fairseq_diverse.preparation.subwords import learn as learn_from
from fairseq_diverse.preparation.tokens import Tokens, clean, pattern
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.parallel import parallel_map
from fairseq_diverse.support.paths import config_names, config_path
from tests.refusals import refusal, refused

MINIMAL = {"source": "en", "target": "de"}


def tokens(language: str = "en", **steps) -> Tokens:
    return Tokens({"language": language, **SIDE_DEFAULTS, **{k.replace("_", "-"): v for k, v in steps.items()}})


@pytest.mark.parametrize("content", ["[]", "3", "{", "null", '{"aa": [0]}', '{"aa": null}', "[" * 9**5, "", "\udcff"])
def test_a_damaged_vocabulary_of_gpt2_is_one_line(tmp_path, content):
    symbols = [*bytes_to_unicode().values(), "in"]
    (tmp_path / "vocab.bpe").write_text("#version: 0.2\ni n\n")
    (tmp_path / "encoder.json").write_text(json.dumps({symbol: number for number, symbol in enumerate(symbols)}))
    model = "gpt2", tmp_path / "encoder.json", tmp_path / "vocab.bpe"
    assert Subwords(*model).segment("in") == "256"
    whole = (tmp_path / "encoder.json").read_text()
    for text in (content, *([whole.replace("{", content[:-1] + ", ", 1)] if content.startswith('{"') else [])):
        (tmp_path / "encoder.json").write_text(text, errors="surrogateescape")
        refused(r"encoder\.json: damaged, or not a encoder\.json of GPT-2", Subwords, *model)


# --- raw files ---

TMX = "<?xml version='1.0'?>\n<!DOCTYPE tmx SYSTEM 'tmx14.dtd'>\n<tmx version='1.4'><header/><body>\n{}\n</body></tmx>"
UNIT = "<tu><tuv xml:lang='{}'><seg>{}</seg></tuv>\n<tuv xml:lang='{}'><seg>{}</seg></tuv></tu>"


def test_units_of_tmx(tmp_path):
    """Text without the codes of formatting; regions; units without both languages are left out; namespaces."""
    units = [
        UNIT.format("en", "a &lt; b &amp; c", "de", "a\n  und <ph x='1'>&lt;br/></ph>b <hi>rot</hi>\n"),
        UNIT.format("EN-US", "colour", "pt_BR", "cor"),
        UNIT.format("en-GB", "<it pos='begin'>x</it>two<!-- no --> parts", "de-AT", "zwei"),
        "<tu><tuv lang='de'><seg>alt</seg></tuv><tuv lang='en'><seg>old</seg></tuv></tu>",
    ]
    path = tmp_path / "a.tmx"
    path.write_text(TMX.format("\n".join(units)))
    expected = [("a < b & c", "a   und b rot"), ("two parts", "zwei"), ("old", "alt")]
    assert [*sentences((path, path), ("en", "de"))] == expected and count_sentences((path, path), ("en", "de")) == 3
    assert [*sentences((path, path), ("de", "en"))] == [pair[::-1] for pair in expected]
    assert [*sentences((path, path), ("en-US", "pt-BR"))] == [("colour", "cor")]
    path.write_text(path.read_text().replace("<tmx ", "<tmx xmlns='http://www.lisa.org/tmx14' "), encoding="utf-16")
    (zipped := tmp_path / "b.tmx.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert [*sentences((zipped, zipped), ("en", "de"))] == expected


gzipped = functools.partial(gzip.compress, mtime=0)  # the same in every process


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "a\tb\n\n", "a.tsv, line 2: 1 column, where source, tab, target are wanted\n"),
        ("a.tsv", "a\tb\t0.3\n", "line 1: 3 columns, where source, tab, target are wanted; cut -f 1,2 takes"),
        (
            "a.tsv",
            gzipped(b"a\tb\n"),
            "a.tsv: compressed; unpack it with gunzip, or call it .gz; plain text, a file for",
        ),
        ("a.tsv.gz", gzipped(b"a\tb\nc\n"), "a.tsv.gz, line 2: 1 column"),
        ("a.tsv.gz", gzipped(b"a\tb\n" * 999)[:-9], "a.tsv.gz: damaged or cut off, or not of gzip ("),
        ("a.tsv.gz", b"a\tb\n", "a.tsv.gz: damaged or cut off, or not of gzip (Not a gzipped file"),
        ("a.tsv.gz", gzipped(b"a\n" + b" " * (1 << 25)), "a.tsv.gz, line 1: 1 column"),
        ("a.tsv.gz", gzipped(b"a\tb\n" + b" " * (1 << 25)), "a.tsv.gz, line 2: longer than 16,777,216 bytes"),
        ("a.tsv", b"a\t\xe4\n", "a.tsv, line 1: not UTF-8"),
        ("a.tmx", TMX.format(UNIT.format("en", "a", "fr", "b")), "a.tmx: no unit (tu) has both en and de; languages:"),
        ("a.tmx", TMX.format(""), "no unit (tu) has both en and de; languages: none"),
        ("a.tmx", TMX.format("<tu>"), "a.tmx, line 5: not TMX, or damaged (Opening and ending tag mismatch: tu"),
        ("a.tmx", "a\n", "a.tmx, line 1: not TMX, or damaged (Start tag expected"),
        ("a.tmx", "", "a.tmx, line 1: not TMX, or damaged (no element found)"),
        ("a.tmx", TMX.format("<tu><tuv xml:lang='en'/></tu>"), "a.tmx, line 4: a tuv with no segment (seg)"),
        ("a.tmx", TMX.format("<tu><tuv><seg>a</seg></tuv></tu>"), "a.tmx, line 4: a tuv with no language (xml:lang)"),
        ("a.tmx", TMX.format(UNIT.format("en", "&x;", "de", "b")), "a.tmx, line 4: the entity &x;, which is never"),
        *(
            ("a.tmx", f"<!DOCTYPE tmx [{entities}]>" + UNIT.format("en", "&x;", "de", "b"), "declares entities, which")
            for entities in ("<!ENTITY a 'aaaa'><!ENTITY x '&a;&a;'>", "<!ENTITY x SYSTEM 'file:///etc/passwd'>")
        ),
    ],
)
def test_wrong_files_of_both_languages_name_the_line(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    error = refusal(list, sentences((path, path), ("en", "de")))
    assert message in f"{error}\n"


def test_a_test_set_that_cannot_be_downloaded_says_how_to_get_it(tmp_path, monkeypatch):
    known = sacrebleu.DATASETS["wmt14"]
    monkeypatch.setattr(known, "_outdir", str(tmp_path))
    monkeypatch.setattr(known, "_rawdir", str(tmp_path / "raw"))
    with socket.socket() as free:
        free.bind(("localhost", 0))
        monkeypatch.setattr(known, "data", [f"http://localhost:{free.getsockname()[1]}/dev.tgz"])
        said = r"^sacrebleu:wmt14: sacreBLEU could not download it \(\w*Error: .*echo src"
        refused(said, sides, tmp_path, "sacrebleu:wmt14", ("de", "en"))
    names = {"sacrebleu:wmt14/full": "wmt14_full", "x/newstest.tsv.gz": "newstest", "x/a.b": "a.b"}
    assert [*map(name_of_test, names)] == [*names.values()]


# --- configuration ---


@pytest.mark.parametrize("name", config_names("data"))
def test_every_data_configuration_is_read(name):
    config = DataConfig.load(config_path("data", name))
    assert "_".join(config.languages) in name or name == "toy" or not config.translates


def test_a_value_for_both_sides_or_each_and_the_default_dictionary():
    config = DataConfig.from_mapping("x", {**MINIMAL, "escape": True, "tokenizer": {"target": "none"}})
    assert [config.sides[side]["escape"] for side in ("source", "target")] == [True, True]
    assert [config.sides[side]["tokenizer"] for side in ("source", "target")] == ["moses", "none"]
    assert config.files == {"train": "train", "valid": "valid", "test": "test"} == config.splits
    several = DataConfig.from_mapping("x", {**MINIMAL, "files": {"test": ["a/one", "two"]}})
    assert several.splits == {"train": "train", "valid": "valid", "test": "a/one", "test1": "two"}
    assert (config.tests, several.tests) == (("test",), ("one", "two"))
    given = {}, {"bpe": {"joint": False}}, {"joined-dictionary": False}
    joined = [DataConfig.from_mapping("x", {**MINIMAL, **more}).joined_dictionary for more in given]
    assert joined == [True, False, False]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tokenise": "moses"}, ("tokenise", "tokenizer")),
        ({"bpe": {"sise": 10}}, ("bpe", "sise", "size")),
        ({"escape": {"src": True}}, ("escape", "src", "source")),
        ({"bpe": {"kind": "wordpiece"}}, ("kind", "wordpiece", "sentencepiece")),
        ({"tokenizer": "spacy"}, ("tokenizer", "spacy", "moses")),
        ({"bpe": {"size": "4k"}}, ("size", "4k")),
        ({"bpe": {"size": 0}}, ("size", "0")),
        ({"bpe": {"kind": "sentencepiece", "threshold": 5}}, ("threshold", "subword-nmt")),
        ({"filter": {"max-length": -1}}, ("max-length", "-1")),
        ({"lowercase": True, "truecase": True}, ("lowercase", "truecase")),
        ({"lowercase": 1}, ("lowercase", "1")),
        ({"files": "train"}, ("files", "train")),
        ({"files": {"test": []}}, ("files", "test", "prefix")),
        ({"files": {"test": ["a/x", "b/x"]}}, ("files: test, or --test: x, x:", "must differ")),
        ({"files": {"test": ["x", "test"]}}, ("files: test, or --test: x, test:", "must differ")),
        ({"files": {"test": ["valid"]}}, ("files: test, or --test: valid:", "must differ")),
        ({"files": {"test": ["a b"]}}, ("files: test, or --test: 'a b'", "name of a test set")),
        ({"target": "en"}, ("source", "target", "en")),
        ({"source": False}, ("source", "False")),
    ],
)
def test_a_wrong_configuration_names_the_key_and_the_value(given, words, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(json.dumps(MINIMAL | given), encoding="utf-8")  # JSON is YAML
    caught = refusal(DataConfig.load, path)
    assert all(word in caught for word in (str(path), *words))


@pytest.mark.parametrize("text", ["source: [en", "just text", "", "- en\n- de\n"])
def test_a_file_that_is_not_a_configuration_is_named(text, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    refused(str(path), DataConfig.load, path)


# --- cleaning, tokens ---


@pytest.mark.parametrize("special", ["\0", "\v", "\f", "\r", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"])
def test_line_separators_and_nul_become_a_space(special):
    assert clean(f"one{special}two") == ("one two", True)


def test_other_characters_do_not_change():
    line = "„ß“ …\t\xa0日本 \U0001f600 क़ \u212b"  # the last would be another in NFC
    assert clean(line) == (line, False)


@pytest.mark.parametrize(
    ("language", "line"), [("fr", "Un café à côté ."), ("ko", "한국어 좋아요"), ("ja", "がぎぐ パピ")]
)
def test_letters_with_their_accents_behind_them_are_one_word(language, line):
    apart = unicodedata.normalize("NFD", line)
    assert apart != line and tokens(language).tokenize(apart) == clean(apart)[0] == line


UNSEEN = {
    "stress and tones": ("Э́то о́чень ста́рый ẹ́ Ọ̀rẹ́.", ["Э́то", "о́чень", "ста́рый", "ẹ́", "Ọ̀rẹ́", "."]),
    "Persian": ("می\u200cخواهم بروم.", ["می\u200cخواهم", "بروم", "."]),
    "Sinhala": ("ශ්\u200dරී ලංකා", ["ශ්\u200dරී", "ලංකා"]),
    "emoji": ("👩\u200d👩\u200d👧 👍🏽 ❤\ufe0f\u200d🔥 🇩🇪 1\ufe0f\u20e3!",
              ["👩\u200d👩\u200d👧", "👍🏽", "❤\ufe0f\u200d🔥", "🇩🇪", "1\ufe0f\u20e3", "!"]),
    "soft hyphen": ("Dampf\xadschiff\xad, U.S.\xad", ["Dampf\xadschiff\xad", ",", "U.S.\xad"]),
    "zero-width spaces": ("(\u200bone\u200b, two.\u200b)", ["(\u200b", "one\u200b", ",", "two", ".\u200b", ")"]),
    "byte order mark": ("\ufeffone \ufefftwo", ["\ufeffone", "\ufefftwo"]),
    "directions": ("\u202bשלום\u202c.", ["\u202bשלום\u202c", "."]),
    "Thai": ("ผู้หญิง สวัสดี", ["ผู้หญิง", "สวัสดี"]),
    "Khmer": ("ខ្ញុំ\u200bស្រលាញ់", ["ខ្ញុំ\u200bស្រលាញ់"]),
    "Burmese": ("မြန်မာ စာ", ["မြန်မာ", "စာ"]),
    "Armenian": ("Ո՞վ է, ահա՛.", ["Ո՞վ", "է", ",", "ահա՛", "."]),
    "Tibetan": ("བླ་མ་ ཡིན", ["བླ་མ་", "ཡིན"]),
    "Hebrew": ("רה״מ צ׳ופצ׳יק: ״", ["רה״מ", "צ׳ופצ׳יק", ":", "״"]),
    "Catalan": ("col·lecció, a · b.", ["col·lecció", ",", "a", "·", "b", "."]),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSEEN)
@pytest.mark.parametrize("options", [{}, {"escape": True, "aggressive_dashes": True}])
def test_characters_that_are_not_seen_stay_in_their_words(name, options):
    line, expected = UNSEEN[name]
    plain = tokens(normalize=False, **options)
    assert plain.tokenize(line).split() == expected
    for text in (line, f"3 & 4 (well-known): {line}"):
        found = plain.tokenize(text)
        assert all(pattern().sub("", token) for token in found.split())
        assert plain.detokenize(found) == text
    assert plain.tokenize("\u200b a \u0301 b \u200b") == "\u200ba \u0301b\u200b"  # by themselves: with the next word
    assert plain.tokenize("\u200b") == "\u200b"


@pytest.mark.parametrize("code", ["fr_FR", "fr_XX", "FR", "fr_Latn"])
def test_moses_has_the_rules_of_the_language_whatever_the_region(code):
    sides = DataConfig.from_mapping("x", {"source": code, "target": "de"}).sides
    assert sides["source"]["rules"] == "fr" and "rules" not in sides["target"]
    french = Tokens(sides["source"])
    assert french.tokenize("L'homme d'à côté") == "L' homme d' à côté"
    assert french.detokenize("L' homme d' à côté") == "L'homme d'à côté"
    assert Tokens(SIDE_DEFAULTS | {"language": code}).tokenize("L'homme") != "L' homme"  # as data prepared before


def test_czech_numbers_keep_their_spaces():
    """sacremoses 0.2.0 asks for a number and a full stop at the end of the sentence, not before the number."""
    czech = Tokens(SIDE_DEFAULTS | {"language": "cs"})
    line = "V roce 1980 se jich 200 přestěhovalo , v roce 1985 ."
    assert czech.detokenize(line) == "V roce 1980 se jich 200 přestěhovalo, v roce 1985."
    assert czech.detokenize("pošli mi e' - mail „ dnes “ .") == "pošli mi e'-mail „dnes“."


def test_moses_steps_and_their_options():
    assert tokens().tokenize("  Well-known „words“, aren't they?") == 'Well-known " words , " aren \'t they ?'
    assert tokens(normalize=False).tokenize("„words“") == "„ words “"
    assert tokens(aggressive_dashes=True).tokenize("well-known") == "well @-@ known"
    assert tokens(escape=True).tokenize("A & B") == "A &amp; B"
    assert tokens(lowercase=True).tokenize("Äpfel UND") == "äpfel und"
    assert tokens(tokenizer="none", normalize=False).tokenize(" a,\xa0b \u3000c ") == "a, b c"


def test_truecasing_is_that_of_moses(tmp_path):
    """Only the first word, and words that were never seen as they are; data prepared before keep what they have."""
    text = ["They may go .", "He told us .", "see the US in May .", "the cat"]
    (tmp_path / "train").write_text("\n".join(text * 3))
    _train_truecaser(tmp_path / "train", tmp_path / "model")
    sacremoses.MosesTruecaser().train([line.split(" ") for line in text * 3], save_to=str(tmp_path / "theirs"))
    assert (tmp_path / "model").read_bytes() == (tmp_path / "theirs").read_bytes()
    steps = SIDE_DEFAULTS | {"language": "en", "truecase": True, "tokenizer": "none", "normalize": False}
    line = "The US may see THE cat in May ."
    assert Tokens(steps, tmp_path / "model").tokenize(line) == "the US may see the cat in May ."
    assert Tokens(steps, tmp_path / "model", moses=False).tokenize(line) != "the US may see the cat in May ."
    assert Tokens(steps).detokenize("the US may see .") == "The US may see ."  # without a model, too


def test_marks_and_entities_of_the_text_itself():
    steps = SIDE_DEFAULTS | {"language": "en"}
    assert Tokens(steps, subwords="sentencepiece").tokenize("Sales \u2581\u2582 rise") == "Sales \u2582 rise"
    assert Tokens(steps, subwords="subword-nmt").tokenize("Sales \u2581 rise") == "Sales \u2581 rise"
    assert tokens(escape=False).detokenize("&quot; is a quote") == "&quot; is a quote"


def _kills(item):
    if item == 700:
        os.kill(os.getpid(), signal.SIGKILL)
    return item + 1


def test_lines_stay_in_order_and_a_killed_process_is_said():
    """As by the kernel, where memory runs out; multiprocessing.Pool waits for its result for ever."""
    with parallel_map(_kills, range(700), 2) as found:
        assert [*found] == [*range(1, 701)]
    said = r"a process died, out of memory\?; .* fewer --workers"
    with pytest.raises(UserError, match=said), parallel_map(_kills, range(5000), 2) as found:
        assert [*found]
    assert not multiprocessing.active_children()


def test_workers_end_where_the_pool_terminates_them():
    """As Python 3.12 and newer do when one was killed; the workers ignore the signals that end the parent."""
    with parallel_map(abs, range(1000), 2) as found:
        assert next(found) == 0
        workers = multiprocessing.active_children()
        for worker in workers:
            worker.terminate()
            assert wait([worker.sentinel], 10)  # the pool's thread joins it, too
        assert len(workers) == 2


@pytest.mark.parametrize(
    ("language", "line"),
    [
        ("en", 'The so-called "man", aged 30, said: [don\'t] & left.'),
        ("de", "Ein „alter“ Mann (30) im T-Shirt, 3,5% größer als z.B. er."),
        ("fr", "L'homme d'à côté, aujourd'hui, s'est-il levé ?"),
        ("cs", "Muž v černém tričku, 30 let (asi), jde domů."),
        ("de", "Er zahlt 1.000 £ Strafe, 5 € mehr als (gestern) um 9:30 Uhr und/oder $20."),
        ("tr", "Ankara'dan, İzmir'e (1923'te) gitti."), ("tr", "Enflasyon %25'e, oran (%2,5) %5-10 oldu, 25% değil."),
        ("fi", "EU:n maat, USA:ssa: 20:een (Suomi)."), ("uk", "Слов'янське м'яке, (сім'я) є."),
        ("ca", "L'home, l'aranya (d'or) i col·lecció."), ("hi", "यह (नया) है। वह, पुराना है॥"),
        ("ar", "ما هذا، يا (صديقي)؟ نعم؛ ٥٠٪"), ("hy", "Ո՞վ է (նա), նախագահը։"), ("am", "ለንደን፣ ትልቅ (ከተማ), ናት።"),
        ("he", 'רה"מ אמר: "צ\'ופצ\'יק" (אם).'), ("he", 'הוא אמר "הדו"ח" ו"הסיפור" היום, ב"הארץ".'),
        ("he", 'ו"הסיפור הגדול", "רמב"ם" ו"רש"י" הם.'), ("he", 'דו"חות "חשובים" ומו"לים "טובים" נכתבו.')
    ],
)  # fmt: skip
@pytest.mark.parametrize("options", [{}, {"escape": True, "aggressive_dashes": True}])
def test_detokenize_undoes_tokenize(language, line, options):
    plain = tokens(language, normalize=False, **options)
    assert plain.tokenize(line).count(" ") > line.count(" ") + 2
    assert plain.detokenize(plain.tokenize(line)) == line


@pytest.mark.parametrize(
    ("lengths", "kept"),
    [((2, 6), True), ((6, 2), True), ((3, 7), True), ((1, 3), False), ((3, 8), False), ((2, 7), False)],
)
def test_limits_of_length_and_ratio_are_inclusive(lengths, kept):
    limits = {"min-length": 2, "max-length": 7, "max-ratio": 3.0}
    assert _within([" ".join("x" * length) for length in lengths], limits) == kept


def test_in_one_language_the_filter_keeps_empty_lines(tmp_path):
    """Which end a document."""
    (tmp_path / "raw").write_text("One word here.\n\nNo.\n\nLast of all.\n")
    config = DataConfig.from_mapping("x", {"source": "en", "filter": {"min-length": 3}})
    steps = (Tokens(config.sides["source"]),)
    found = tokenize(config, steps, "train", (tmp_path / "raw",), 5, tmp_path, False, 1, 0)
    assert found == {"train": {"read": 5, "kept": 4, "empty": 2, "filtered": 1, "replaced": 0}}
    assert (tmp_path / "train.en").read_text() == "One word here.\n\n\nLast of all.\n"


@pytest.mark.parametrize("steps", [{}, {"tokenizer": "none"}, {"lowercase": True}])
def test_empty_lines_stay_empty(steps):
    assert tokens(**steps).tokenize(" \xa0\t") == ""
    assert tokens(**steps).detokenize("") == ""


def test_chinese_words_are_segmented_by_jieba_and_joined_again(monkeypatch):
    monkeypatch.setitem(sys.modules, "jieba", None)
    refused("pip install jieba", tokens, "zh", tokenizer="jieba")
    words = ["我", "爱", "New York", " ", "城"]
    stand_in = SimpleNamespace(cut=lambda line: iter(words), setLogLevel=lambda level: None)
    monkeypatch.setitem(sys.modules, "jieba", stand_in)
    chinese = tokens("zh", tokenizer="jieba", normalize=False)
    assert chinese.tokenize("我爱New York 城") == "我 爱 New York 城"
    assert chinese.detokenize("我 爱 New York 城 。") == "我爱New York城。"


# --- subwords ---

TEXT = ["the lower tower", "the lowest tower is lower", "a newer tower", "ein neuer Turm", "der neueste Turm"] * 4


def learn(kind, lines, size, model):
    (text := model.with_name("text")).write_text("\n".join(lines), encoding="utf-8")
    return learn_from(kind, [text], size, model)


@pytest.mark.parametrize(("kind", "size"), [("subword-nmt", 20), ("sentencepiece", 40)])
def test_joining_undoes_segmenting(kind, size, tmp_path):
    assert learn(kind, TEXT, size, tmp_path / "model") == size
    subwords = Subwords(kind, tmp_path / "model")
    for line in (*TEXT, "unseen zebra", "\ufb01ve \u2460", ""):
        segmented = subwords.segment(line)
        assert subwords.join(segmented) == line
        assert subwords.join(line) == line  # marks already removed by --remove-bpe
    assert subwords.segment("lowest newest").count(" ") > 1
    if kind == "subword-nmt":
        assert subwords.join("a tow@@") == "a tow"  # a model may end with the beginning of a word
    pieces = subwords.segment("the lowest newest").split()
    words = subwords.words(pieces)
    assert [subwords.join(" ".join(word)) for word in words] == ["the", "lowest", "newest"]
    assert [piece for word in words for piece in word] == pieces and subwords.words([]) == []


@pytest.mark.parametrize(("kind", "size"), [("subword-nmt", 20), ("sentencepiece", 40)])
def test_the_model_depends_on_the_text_alone(kind, size, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        learn(kind, TEXT, size, tmp_path / name / "model")
    assert (tmp_path / "one/model").read_bytes() == (tmp_path / "two/model").read_bytes()


def test_sentencepiece_learns_from_very_long_lines_and_those_with_its_own_mark(tmp_path):
    learn("sentencepiece", [*TEXT, "q" + " the tower" * 500, "zebra \u2585"], 50, tmp_path / "model")
    made = Subwords("sentencepiece", tmp_path / "model")
    assert made.pieces.unk_id() not in made.pieces.encode("q zebra")
    assert made.join(made.segment("zebra \u2585")) == "zebra \u2585"


def test_rare_subwords_are_split_further(tmp_path):
    learn("subword-nmt", TEXT, 100, tmp_path / "model")
    whole = Subwords("subword-nmt", tmp_path / "model")
    assert whole.segment("ein tower") == "ein tower"
    count_subwords(map(whole.segment, TEXT), tmp_path / "vocabulary")
    limited = Subwords("subword-nmt", tmp_path / "model", tmp_path / "vocabulary", threshold=10)
    split = limited.segment("ein tower")  # "ein" occurs 4 times, "tower" 12 times
    assert split.endswith(" tower")
    assert split.count(" ") > 1


def test_counts_of_subwords_and_pairs_that_occur_twice(tmp_path):
    count_subwords(["a b@@ c", "c b@@ c"], tmp_path / "vocabulary")
    assert (tmp_path / "vocabulary").read_text() == "c 3\nb@@ 2\na 1\n"
    assert learn("subword-nmt", ["ab ab", "xy"], 10, tmp_path / "model") == 1  # a and b


@pytest.mark.parametrize(
    ("kind", "text"), [("subword-nmt", ["a b", "c"]), ("subword-nmt", [""]), ("sentencepiece", TEXT)]
)
def test_text_too_small_for_subwords_is_refused(kind, text, tmp_path):
    refused(r"two letters|sentencepiece cannot learn a vocabulary of 9000", learn, kind, text, 9000, tmp_path / "model")


def test_fewer_merges_than_asked_for_are_said(tmp_path, capsys):
    (tmp_path / "text").write_text("\n".join(TEXT))
    for size in (20, 5000):
        _learn({"kind": "subword-nmt", "size": size}, [tmp_path / "text"], tmp_path / "model")
        warned = re.search(r"warning: (\d+) merges in place of 5,000: no other pair", capsys.readouterr().err)
        assert bool(warned) == (size == 5000)
    assert int(warned[1]) == len((tmp_path / "model").read_text().splitlines()) - 1


# --- steps ---


def test_a_step_is_run_once_per_purpose(tmp_path):
    for purpose in ([{"size": 1}], [{"size": 2}]):
        assert Steps(tmp_path / "work", purpose)("add", sum, [1, 2]) == 3
        (tmp_path / "work/file").touch()
        again = Steps(tmp_path / "work", purpose)
        assert again("add", pytest.fail, "done twice") == 3
        assert (tmp_path / "work/file").exists()
        with pytest.raises(ZeroDivisionError):
            again("divide", lambda: 1 / 0)
        assert Steps(tmp_path / "work", purpose)("divide", int, "5") == 5
    Steps(tmp_path / "work", "other")
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '{"done": {}}', '{"purpose": "x"}', '{"purpose": "x", "done": 1}', "\xff"]
)
def test_damaged_results_of_steps_are_not_used(damage, tmp_path):
    Steps(tmp_path / "work", "x")("add", sum, [1, 2])
    (tmp_path / "work/steps.json").write_bytes(damage.encode("latin-1"))
    assert Steps(tmp_path / "work", "x")("add", sum, [1, 3]) == 4


# --- the record ---


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "written by `fairseq-diverse prepare`"), ('{"format": "fairseq', "not whole JSON"),
        ("\x00\xff", "not whole JSON"), ("[" * 10**5, "not whole JSON"), ("[]", "not a JSON object"),
        ('{"schema": 1}', "not written by"),
        (json.dumps({"format": FORMAT, "schema": str(SCHEMA)}), "not written by"),
        (json.dumps({"format": FORMAT, "schema": SCHEMA + 1}), "newer"),
        (json.dumps({"format": FORMAT, "schema": SCHEMA}), "incomplete")
    ],
)  # fmt: skip
def test_an_unusable_record_is_named_in_one_line(text, words, tmp_path):
    if text is not None:
        (tmp_path / FILE).write_bytes(text.encode("latin-1"))
    message = refusal(Preprocessing.load, tmp_path)
    assert str(tmp_path / FILE) in message and words in message
