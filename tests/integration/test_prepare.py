"""`fairseq-diverse prepare` as a user runs it."""

import gzip
import importlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sacrebleu

from fairseq_diverse.cli import main
from fairseq_diverse.preparation import DataConfig, Preprocessing, steps
from fairseq_diverse.preparation.tokens import Tokens
from fairseq_diverse.support.paths import config_path
from tests.integration.commands import cli, preprocess_in_a_fork, script, shared_data

prepare_module = importlib.import_module("fairseq_diverse.preparation.prepare")  # not the function
COMMAND = Path(sys.executable).with_name("fairseq-diverse")
WORDS = {
    "en": ["a", "man", "walks", "quickly", "through", "the", "old", "town", "and", "looks", "at", "houses"],
    "de": ["ein", "Mann", "geht", "schnell", "durch", "die", "Altstadt", "und", "sieht", "Häuser", "an"],
}
CONFIG = {"source": "en", "target": "de", "bpe": {"size": 30}}


def write_raw(raw: Path, lines: int = 40) -> Path:
    raw.mkdir()
    for split, count in (("train", lines), ("valid", 5), ("test", 6)):
        for language, words in WORDS.items():
            step = 3 if split == "train" else 5
            text = [" ".join(words[(i * step + j) % len(words)] for j in range(4 + i % 5)) + "." for i in range(count)]
            (raw / f"{split}.{language}").write_text("\n".join(text) + "\n", encoding="utf-8")
    return raw


def edit(path: Path, line: int, text: str) -> None:
    """Replace a line, counted from 1."""
    lines = path.read_text(encoding="utf-8").split("\n")
    lines[line - 1] = text
    path.write_text("\n".join(lines), encoding="utf-8")


@pytest.fixture
def raw(tmp_path) -> Path:
    return write_raw(tmp_path / "raw")


@pytest.fixture
def prepare(tmp_path, raw):
    """Runs the command with changes to ``CONFIG`` and further arguments; returns what it prints."""

    def run(*arguments: str, fails: int = 0, **config) -> str:
        done = cli(*command(tmp_path, raw, *arguments, **config), cwd=tmp_path, fails=fails)
        return done.stderr.splitlines()[-1] if fails else done.stdout + done.stderr

    return run


@pytest.fixture(autouse=True)
def forked_preprocess() -> Iterator[None]:
    with preprocess_in_a_fork():
        yield


def command(tmp_path: Path, raw: Path, *arguments: str, **config) -> list[str]:
    (tmp_path / "mine.yaml").write_text(json.dumps(CONFIG | config), encoding="utf-8")
    return ["prepare", "mine.yaml", "--raw", str(raw), "--out", "out", *arguments]


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def contents(out: Path) -> dict[str, bytes]:
    """Every file of a prepared data set, except fairseq's log, which contains the time."""
    files = [path for path in out.rglob("*") if path.is_file() and path.name != "preprocess.log"]
    return {str(path.relative_to(out)): path.read_bytes() for path in files}


def own(out: str = "own", **flags: str) -> list[str]:
    given = {"source": "en", "target": "de", "train": "raw/train", "valid": "raw/valid", "test": "raw/test"} | flags
    words = [word for name, value in given.items() if value for word in (f"--{name}", *value.split())]
    return ["prepare", *words, "--bpe-size", "30", "--out", out]


def test_files_of_ones_own_without_a_configuration(tmp_path, raw, prepare):
    prepare()
    for language in WORDS:
        shutil.copyfile(raw / f"test.{language}", raw / f"second.{language}")
        shutil.move(raw / f"valid.{language}", tmp_path / f"dev.{language}")
    written = tmp_path / "deep/own.yaml"
    said = cli(*own("deep/own", valid="dev", test="raw/test raw/second"), cwd=tmp_path).stdout
    assert f"configuration: {written}\n" in said
    made, named = contents(tmp_path / "deep/own"), contents(tmp_path / "out")
    assert all(made[file] == content for file, content in named.items() if file != "preprocess.json")
    assert "test1.en-de.en.bin" in made
    again = cli("prepare", written, "--raw", tmp_path, "--out", "deep/own", cwd=tmp_path)
    assert again.stdout == f"already prepared: {tmp_path}/deep/own\n"

    written.write_text(written.read_text() + "normalize: false\n")
    said = cli(*own("deep/own", valid="dev"), cwd=tmp_path, fails=2).stderr
    command = f"fairseq-diverse prepare {written} --raw {tmp_path} --out {tmp_path}/deep/own"
    assert f"says otherwise than the flags; `{command}` follows it, and --overwrite" in said
    assert written.read_text().endswith("normalize: false\n") and contents(tmp_path / "deep/own") == made
    cli(*own("deep/own", valid="dev"), "--overwrite", cwd=tmp_path)
    assert DataConfig.load(written).tests == ("test",)


def write_tmx(path: Path, pairs: Iterator[tuple[str, str]]) -> None:
    units = "\n".join(
        f"<tu><tuv xml:lang='EN-us'><seg>{en}</seg></tuv><tuv xml:lang='de'><seg><hi>{de}</hi></seg></tuv></tu>"
        for en, de in pairs
    )
    path.write_text(f"<?xml version='1.0'?><tmx version='1.4'><header/><body>{units}</body></tmx>", encoding="utf-8")


def test_compressed_files_and_those_of_both_languages_are_prepared_as_plain_text(tmp_path, raw, monkeypatch, capsys):
    wmt14 = sacrebleu.DATASETS["wmt14"]
    monkeypatch.setattr(wmt14, "_outdir", str(tmp_path / "sacrebleu"))
    pairs = {s: [*zip(*(lines_of(raw / f"{s}.{a}") for a in WORDS), strict=True)] for s in ("train", "valid")}
    assert main(own(str(tmp_path / "plain"), **{s: str(raw / s) for s in ("train", "valid", "test")})) == 0
    (tmp_path / "sacrebleu").mkdir()
    for field in wmt14.fieldnames("en-de"):
        shutil.copy(raw / f"test.{'de' if field == 'ref' else 'en'}", wmt14._get_txt_file_path("en-de", field))
    for way in ("gz", "joint"):
        (folder := tmp_path / way).mkdir()
        names = {"train": folder / "train.tsv.gz", "valid": folder / "valid.tmx", "test": "sacrebleu:wmt14"}
        if way == "joint":
            names["train"].symlink_to("blob")
            with gzip.open(names["train"], "wt", encoding="utf-8") as file:
                file.writelines(f"{en}\t{de}\n" for en, de in pairs["train"])
            write_tmx(names["valid"], pairs["valid"])
        else:
            names |= {"train": folder / "train", "valid": folder / "valid"}
            for path in [*raw.glob("train.*"), *raw.glob("valid.*")]:
                (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        out = str(tmp_path / f"from_{way}")
        assert main(own(out, **{split: str(path) for split, path in names.items()})) == 0
        made, expected = contents(Path(out)), contents(tmp_path / "plain")
        record, before = (json.loads(files.pop("preprocess.json")) for files in (made, expected))
        assert made == expected and record["hash"] == before["hash"]
        assert {"sacrebleu:wmt14.en", "sacrebleu:wmt14.de"} < set(record["raw"])
        assert str(tmp_path) not in json.dumps(record)
        again = ["prepare", f"{out}.yaml", "--raw", str(folder), "--out", out]
        assert main(again) == 0  # the same files
    write_tmx(names["valid"], [*pairs["valid"][:2], ("a\u2028b", "c")])
    assert main([*again, "--strict", "--overwrite"]) == 2
    assert "joint/valid.tmx, pair 3: a line separator or NUL" in capsys.readouterr().err


def test_pairs_that_were_read_before_are_dropped(tmp_path, raw, prepare, error_of):
    for language, lines in {"en": ("a man", "a  man", "a man", "the man"), "de": ("ein Mann",) * 4}.items():
        with open(raw / f"train.{language}", "a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
    pairs = [*zip(lines_of(raw / "train.en"), lines_of(raw / "train.de"), strict=True)]
    kept = {(" ".join(en.split()), de) for en, de in pairs}
    dropped = len(pairs) - len(kept)
    assert dropped > 1
    said = prepare("--dedup")
    assert f"train: {len(kept)} of {len(pairs)} pairs kept, 0 empty dropped, {dropped} duplicates dropped" in said
    out = tmp_path / "out"
    found = [*zip(lines_of(out / "text/tok.train.en"), lines_of(out / "text/tok.train.de"), strict=True)]
    assert len({*found}) == len(found) == len(kept) and len(lines_of(out / "text/test.en")) == 6
    assert json.loads((out / "preprocess.json").read_text())["splits"]["train"]["duplicates"] == dropped
    assert "already prepared" in prepare("--dedup")
    assert "prepared from another configuration" in prepare(fails=2)
    assert "--dedup: glue-CoLA is prepared as it is" in error_of("prepare", "glue-CoLA", "--raw", raw, "--dedup")
    said = cli(*own(), "--dedup", cwd=tmp_path).stdout
    assert f"{dropped} duplicates dropped" in said and "dedup: true" in (tmp_path / "own.yaml").read_text()


def test_languages_with_a_hyphen_and_text_in_one_language(tmp_path, raw, prepare):
    for path in raw.glob("*.de"):
        path.rename(path.with_suffix(".pt-BR"))
    prepare(target="pt-BR")
    assert (tmp_path / "out/test.en-pt_BR.pt_BR.bin").is_file() and (tmp_path / "out/text/test.pt_BR").is_file()
    said = cli(*own(target="", test=""), cwd=tmp_path).stdout
    assert "train: 40 of 40 lines kept" in said and (tmp_path / "own/dict.txt").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["prepare"], "what is to be prepared? Write `prepare NAME --raw DIR`, or for files of your own `prepare "),
        (["prepare", "toy"], "toy: where are its files? Give --raw DIR or --archives DIR"),
        (["prepare", "nosuch", "--raw", "."], "toy, wmt14_en_de, wmt14_en_fr, wmt17_en_cs, wmt17_en_de, wmt17_zh_en; "),
        (["prepare", "multi30k_en_de", "--archives", "x"], "multi30k_en_de names no sources"),
        (["prepare", "iwslt14_de_en", "--raw", "x", "--accept-counts"], "go with --archives"),
        ([*own(), "--no-download", "--strict-counts"], "--no-download, --accept-counts and --strict-counts go with --"),
        ([*own(), "--as-text"], "--as-text: is for tasks of GLUE"),
        (["prepare", "probing", "--raw", "raw", "--monolingual", "de"], "--monolingual: probing is prepared as it is"),
        (
            ["prepare", "propositional_logic", "--raw", "raw", "--strict"],
            "--strict: propositional_logic is prepared as",
        ),
        (["prepare", "eraser-movies", "--raw", "raw", "--strict"], "--strict: eraser-movies is prepared as it is"),
        (["prepare", "iwslt14_de_en", "probing", "--archives", "x", "--out", "y"], "--out y: is for one NAME"),
        (["prepare", "--source", "de", "--out", "a"], "--train, --valid: missing, since --source is given; "),
        ([*own(), "toy"], "--source: not with the name toy; "),
        ([*own(), "--raw", "raw"], "--raw and --archives go with NAME"),
        ([*own(), "--monolingual"], "--monolingual goes with NAME"),
        ([*own(target="", test=""), "--gpt2-bpe", "x"], "--bpe-size 30: not with --gpt2-bpe"),
        (own(target=""), "--test: text of one language has no test set"),
        (own(test=""), "--test: missing, since --source is given; "),
        (own(train="raw/train.de"), "--train raw/train.de: leave out the language: raw/train means raw/train.en"),
        (own(train="raw/train.de.gz"), "--train raw/train.de.gz: leave out the language: raw/train means raw/train.en"),
        (own(train="raw/all.zip"), "--train raw/all.zip: a file, where the beginning of the names of text files is"),
        (own(valid="raw"), "--valid raw: a folder, where the beginning of the names of text files is wanted"),
        (["prepare", "corpus.tmx", "--raw", "."], "corpus.tmx: plain text, a file for each language with one sentence"),
        (own(out="o\x1b[31m"), "--out o\\x1b[31m: has a control character"),
        (own(train="raw/${x}/train"), "--train ${x}/train: ${...} is not supported"),
        (own(valid="raw/a\udcff"), "--valid a\\udcff: has a control character or half of a surrogate pair"),
        (own(target="en"), "source and target are both en"),
        (own(source="e!"), "source: must be a language code"),
        (own(valid="raw/dev"), "raw/dev.en: cannot be read"),
        (own(test="sacrebleu:wmt14x"), "sacrebleu:wmt14x: no test set of sacreBLEU; nearest: wmt14; "),
        (own(target="xx", test="sacrebleu:wmt15"), "sacrebleu:wmt15: sacreBLEU has no en-xx of it; known: "),
        (own(train="raw/train.tsv"), "raw/train.tsv: cannot be read (No such file"),
        (own(train="raw/all.tsv", target="", test=""), "all.tsv: has two languages; text of one language is a file"),
        (
            own(test="raw/test other/test"),
            "files: test, or --test: test, test: the names of test sets (a prefix without folders) must differ",
        ),
        ([*own(), "--bpe-size", "0"], "size must be at least 1"),
    ],
)
def test_wrong_flags_for_files_of_ones_own_are_one_line(tmp_path, raw, monkeypatch, error_of, words, message):
    (raw / "all.zip").touch()
    monkeypatch.chdir(tmp_path)
    assert message in error_of(*words)
    assert {path.name for path in tmp_path.iterdir()} == {"raw"}


def test_fairseq_reads_the_result_and_preprocessing_repeats_it(tmp_path, raw, prepare):
    from fairseq.data import Dictionary, data_utils

    assert "train: 40 of 40 pairs kept" in prepare()
    out = tmp_path / "out"
    preprocessing = Preprocessing.load(out)
    assert (preprocessing.source, preprocessing.target) == ("en", "de")
    for language in WORDS:
        lines = (raw / f"train.{language}").read_text().splitlines()
        (raw / f"second.{language}").write_text("\n".join(lines[::-1]) + "\n")
    (out / "trees").mkdir()
    (out / "trees/train.en.conllu").write_text("hours of parsing")
    said = prepare("--overwrite", files={"test": ["test", str(raw / "second")]})
    assert (out / "trees/train.en.conllu").read_text() == "hours of parsing"
    assert "test1 (second): 40 of 40 pairs kept" in said
    record = json.loads((out / "preprocess.json").read_text())
    assert record["hash"] == preprocessing.hash and list(record["tests"]) == ["test", "second"]
    for split in ("train", "valid", "test", "test1"):
        for language, side in (("en", "source"), ("de", "target")):
            dictionary = Dictionary.load(str(out / f"dict.{language}.txt"))
            binarized = data_utils.load_indexed_dataset(str(out / f"{split}.en-de.{language}"), dictionary)
            raw_lines, segmented = (lines_of(out / f"text/{of}{split}.{language}") for of in ("", "bpe."))
            assert [dictionary.string(sentence) for sentence in binarized] == segmented
            assert [preprocessing.encode(line, side) for line in raw_lines] == segmented
            assert [preprocessing.decode(line, side) for line in segmented] == raw_lines
    assert (out / "dict.en.txt").read_bytes() == (out / "dict.de.txt").read_bytes()  # joined


def test_the_same_input_gives_the_same_bytes_also_with_two_workers(tmp_path, prepare):
    prepare()
    first = contents(tmp_path / "out")
    shutil.rmtree(tmp_path / "out")
    prepare("--workers", "2")
    assert contents(tmp_path / "out") == first


def test_a_second_run_is_skipped_and_other_data_is_refused(tmp_path, raw, prepare):
    prepare()
    before = (tmp_path / "out/preprocess.json").stat().st_mtime_ns
    assert prepare().startswith("already prepared")
    assert "add --overwrite" in prepare(escape=True, fails=2)
    for name in ("valid.de", "test.en", "train.en"):
        content = (raw / name).read_bytes()
        edit(raw / name, 3, "Another line.")
        assert "add --overwrite" in prepare(fails=2), name
        (raw / name).write_bytes(content)
    assert (tmp_path / "out/preprocess.json").stat().st_mtime_ns == before
    edit(raw / "train.en", 3, "Another line.")
    old = Preprocessing.load(tmp_path / "out").hash
    prepare("--overwrite")
    assert Preprocessing.load(tmp_path / "out").hash != old
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine.yaml", "out", "raw"]


def test_a_foreign_directory_is_never_replaced(tmp_path, prepare):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.tex").write_text("mine")
    assert "not a prepared data set" in prepare("--overwrite", fails=2)
    assert (tmp_path / "out/thesis.tex").read_text() == "mine"


def test_a_data_set_with_raw_or_other_files_in_it_is_not_replaced(tmp_path, prepare):
    out = tmp_path / "out"
    prepare()
    (out / "checkpoints").mkdir()
    (out / "notes.md").write_text("mine")
    before = contents(out)
    said = "out: has checkpoints, notes.md, which --overwrite would delete; move it elsewhere"
    assert prepare("--overwrite", escape=True, fails=2).endswith(said)
    shutil.rmtree(out / "checkpoints")
    (out / "notes.md").replace(out / ".DS_Store")  # as systems make them
    (mine := out / ".train.en-de.en.syntax.part").mkdir()  # what a killed binarize-syntax leaves
    for name in ("train.en-de.en.syntax.bin", "test1.en-de.en.syntax.json", "valid.en-de.en.conllu", "dict.txt"):
        (out / name).touch()
    said = f"{out}/text/train.en: inside {out}, which --overwrite would delete; move it elsewhere"
    assert prepare("--overwrite", "--raw", str(out / "text"), escape=True, fails=2).endswith(said)
    assert before.items() <= (contents(out) | {"notes.md": b"mine"}).items()
    prepare("--overwrite", escape=True)
    assert not mine.exists()


@pytest.fixture
def unclean(raw):
    """Two empty training pairs, one line with U+2028 and U+0085 and one with NUL, an empty test line."""
    edit(raw / "train.en", 4, "")
    edit(raw / "train.de", 7, " \u2028 ")
    edit(raw / "train.de", 9, "ein\u2028Mann\x85geht.")
    edit(raw / "test.en", 2, "a\0man.")
    edit(raw / "test.de", 3, "")
    return raw


def test_unclean_or_long_training_data_is_fixed_or_dropped_and_test_lines_are_kept(tmp_path, unclean, prepare):
    edit(unclean / "train.en", 12, "one two three four five six seven eight nine ten eleven.")
    edit(unclean / "train.de", 13, "zu kurz.")
    edit(unclean / "test.de", 4, "zu kurz.")
    said = prepare(filter={"max-length": 10, "max-ratio": 2})
    out = tmp_path / "out"
    assert "train: 36 of 40 pairs kept, 2 empty dropped" in said
    assert json.loads((out / "preprocess.json").read_text())["splits"] == {
        "train": {"read": 40, "kept": 36, "empty": 2, "filtered": 2, "replaced": 2},
        "valid": {"read": 5, "kept": 5, "empty": 0, "filtered": 0, "replaced": 0},
        "test": {"read": 6, "kept": 6, "empty": 1, "filtered": 0, "replaced": 1},
    }
    expected = lines_of(unclean / "train.en")
    assert lines_of(out / "text/train.en") == [line for i, line in enumerate(expected, 1) if i not in (4, 7, 12, 13)]
    assert lines_of(out / "text/train.de")[6] == "ein Mann geht."
    assert lines_of(out / "text/test.en")[1] == "a man."
    assert lines_of(out / "text/test.de")[2] == ""
    assert len(lines_of(out / "text/bpe.test.de")) == 6


def test_strict_refuses_unclean_data_with_file_and_line(tmp_path, unclean, prepare):
    assert f"{unclean / 'train.en'}, line 4: empty" in prepare("--strict", fails=2)
    edit(unclean / "train.en", 4, "a man.")
    assert f"{unclean / 'train.de'}, line 7: a line separator or NUL" in prepare("--strict", fails=2)
    assert not (tmp_path / "out").exists()
    prepare()  # --strict also checks data that is prepared already
    assert f"{unclean / 'train.de'}, line 7" in prepare("--strict", fails=2)
    for line in (7, 9):
        edit(unclean / "train.de", line, "ein Mann.")
    assert f"{unclean / 'test.en'}, line 2" in prepare("--strict", "--overwrite", fails=2)
    edit(unclean / "test.en", 2, "a man.")
    prepare("--strict", "--overwrite")  # an empty test line is not fixed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: edit(path, 41, "one more\n"), "raw/train.en has 41 lines and {tmp_path}/raw/train.de 40"),
        (lambda path: path.write_bytes(path.read_bytes().replace(b"\n", b"\n\xe4")), "train.en, line 2: not UTF-8 (b"),
        (lambda path: path.rename(path.with_name("dev.en")), "raw/train.en: cannot be read (No such file"),
        (lambda path: path.write_bytes(gzip.compress(path.read_bytes())), "train.en: compressed; unpack it with gun"),
        (lambda path: path.write_bytes(path.read_text().encode("utf-16-le")), "train.en: UTF-16; convert it to UTF-8"),
        (lambda path: path.write_text("<?xml version='1.0'?><tmx/>\n"), "train.en: XML; if it is TMX, call it .tmx;"),
        (lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\noid x\n"), "train.en: the pointer"),
        (lambda path: path.write_text(path.read_text().replace("\n", "\tein Satz\n")), "train.en: every line has col"),
        (lambda path: path.write_text(path.read_text().replace("\n", "\r"), newline=""), "lines end with a carriage"),
        (lambda path: path.rename(f"{path}.zip"), "train.en.zip is there, but plain text, a file for each language"),
        (lambda path: [os.replace(path.with_suffix(e), path.with_name(f"test{e}"))
                       or path.with_suffix(e).symlink_to(f"test{e}") for e in (".en", ".de")],
         "test.en: the test split is the training text, "),
        (lambda path: edit(path, 3, "an </s>"), "train.en, line 3: the word '</s>' is a mark of fairseq's or of subw"),
        (lambda path: edit(path, 3, "a hou@@"), "train.en, line 3: the word 'hou@@' is a mark of fairseq's or of sub"),
    ],
)  # fmt: skip
def test_what_is_not_text_of_two_languages_and_three_splits_is_refused(change, message, tmp_path, raw, prepare):
    """Marks are refused where the text is not tokenized."""
    change(raw / "train.en")
    assert message.replace("{tmp_path}", str(tmp_path)) in prepare(tokenizer="none", fails=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine.yaml", "raw"]


def test_of_two_processes_for_one_folder_one_is_refused(tmp_path, raw, monkeypatch):
    """At once, or later; and files that change meanwhile are not taken for those before."""
    first, second = (DataConfig.from_mapping("x", CONFIG | {"bpe": {"size": size}}) for size in (30, 31))
    real = prepare_module.binarize

    def meanwhile(*arguments):
        with pytest.raises(ValueError, match=r"process \d+ is working on .*\.out\.part"):
            prepare_module.prepare(second, raw, tmp_path / "out")
        edit(raw / "train.en", 3, "Another line.")
        real(*arguments)

    monkeypatch.setattr(prepare_module, "binarize", meanwhile)
    with pytest.raises(ValueError, match=r"raw: its files were changed while they were prepared; start again"):
        prepare_module.prepare(first, raw, tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["raw"]
    monkeypatch.setattr(prepare_module, "binarize", real)
    prepare_module.prepare(first, raw, tmp_path / "out")
    with pytest.raises(ValueError, match="prepared from another configuration"):
        prepare_module.prepare(second, raw, tmp_path / "out")


def test_a_test_set_in_the_training_text_is_said(raw, prepare):
    for line in (1, 2, 3):
        for language in WORDS:
            edit(raw / f"test.{language}", line, lines_of(raw / f"train.{language}")[line + 20])
    said = prepare()
    assert "warning: 3 of 6 pairs of test are in the training text," in said and "of valid" not in said


DETOKENIZE = "detokenize it first (sacremoses -l de detokenize < FILE), or compare by multi-bleu"


@pytest.mark.parametrize(
    ("line", "config", "warnings"),
    [
        ("ein Mann geht schnell .", {}, [DETOKENIZE]),  # also if it is not tokenized again
        ("ein Mann geht schnell .", {"tokenizer": "none"}, [DETOKENIZE]),
        ("foto's van auto's", {}, ["warning: tokenized and detokenized, the validation references have BLEU",
                                   "\"foto's van auto's\" becomes \"foto 's van auto' s\""]),
        ("DER HUND SCHLÄFT.", {"lowercase": True}, []),  # of lower-cased data they are lower-cased, too
        ("Ein Haus", {}, []),  # without a 4-gram
        ("สวัสดีครับ", {"tokenizer": "none"}, []),
    ],
)  # fmt: skip
def test_references_that_are_tokenized_or_that_preparation_changes_are_said(line, config, warnings, raw, prepare):
    (raw / "valid.de").write_text(f"{line}\n" * 5, encoding="utf-8")
    said = prepare(**config)
    assert all(warning in said for warning in warnings) and ("warning" in said) == bool(warnings)


@pytest.mark.parametrize("links", [True, False])
def test_a_second_preparation_never_has_the_trees_in_one_folder_alone(links, tmp_path, monkeypatch):
    """What a killed process leaves is deleted by the next one; parsing took hours. Some file systems have no links."""
    if not links:
        monkeypatch.setattr(prepare_module.os, "link", lambda *_: os.listdir(tmp_path / "nosuch"))
    out, work = tmp_path / "out", tmp_path / "work"
    (out / "trees").mkdir(parents=True)
    (out / "trees/train.en.conllu").write_text("parsed")
    work.mkdir()
    rename, trees = os.replace, []

    def watched(source, target):
        rename(source, target)
        trees.append(len(list(tmp_path.rglob("train.en.conllu"))))

    monkeypatch.setattr(prepare_module.os, "replace", watched)
    prepare_module.put_in_place(work, out, kept="trees")
    assert trees == [2] * (2 if links else 3) and (out / "trees/train.en.conllu").read_text() == "parsed"
    assert list(tmp_path.iterdir()) == [out]
    monkeypatch.setattr(prepare_module.os, "replace", rename)
    with pytest.raises(OSError):  # a last step that fails, here for there is nothing to put in place
        prepare_module.put_in_place(work, out)
    assert (out / "trees/train.en.conllu").read_text() == "parsed" and list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(
    "config",
    [
        {"bpe": {"kind": "sentencepiece", "size": 60}, "tokenizer": "none"},
        {"bpe": {"kind": "sentencepiece", "size": 60, "joint": False}},
        {"bpe": {"size": 30, "joint": False, "threshold": 3}, "truecase": True, "escape": True},
    ],
)
def test_other_steps_are_read_back_as_they_were_applied(config, tmp_path, prepare):
    prepare(**config)
    out = tmp_path / "out"
    preprocessing = Preprocessing.load(out)
    for language, side in (("en", "source"), ("de", "target")):
        raw_lines, segmented = lines_of(out / f"text/test.{language}"), lines_of(out / f"text/bpe.test.{language}")
        assert [preprocessing.encode(line, side) for line in raw_lines] == segmented
        decoded = [preprocessing.decode(line, side) for line in segmented]
        assert [line.lower() for line in decoded] == [line.lower() for line in raw_lines]
    joined = (out / "dict.en.txt").read_bytes() == (out / "dict.de.txt").read_bytes()
    assert joined == config["bpe"].get("joint", True)


def test_a_full_disk_leaves_nothing(tmp_path, raw):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (900, 900))  # bytes a file

    line = [COMMAND, *command(tmp_path, raw)]
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, preexec_fn=limit)
    assert done.returncode == 2 and "out: not prepared:" in done.stderr.splitlines()[-1]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine.yaml", "raw"]


def test_with_a_working_directory_finished_steps_are_not_repeated(tmp_path, raw, monkeypatch):
    config = DataConfig.from_mapping("x", CONFIG | {"truecase": True, "bpe": {"size": 30, "threshold": 3}})
    prepare_module.prepare(config, raw, tmp_path / "fresh")
    calls = []
    where = {"tokenize": prepare_module, "_apply_truecaser": steps, "_apply": steps, "binarize": prepare_module}
    for name, place in where.items():
        step = getattr(place, name)
        monkeypatch.setattr(place, name, lambda *a, name=name, step=step: (calls.append(name), step(*a))[1])
    out = tmp_path / "out"
    for step, at in (("tokenize", 1), ("_apply_truecaser", 4), ("_apply", 2), ("binarize", 1)):
        real, left = getattr(where[step], step), [at]

        def stop(*arguments, real=real, left=left):
            left[0] -= 1
            result = real(*arguments)  # its files exist, but it is not recorded
            if not left[0]:
                raise KeyboardInterrupt
            return result

        with monkeypatch.context() as patch:
            patch.setattr(where[step], step, stop)
            with pytest.raises(KeyboardInterrupt):
                prepare_module.prepare(config, raw, out, resumes=True)
        assert not out.exists()
    assert prepare_module.prepare(config, raw, out, resumes=True)
    assert contents(out) == contents(tmp_path / "fresh")
    assert not (tmp_path / ".out.part").exists()
    again = dict.fromkeys(where, 1)  # only the interrupted steps
    once = {"tokenize": 3, "_apply_truecaser": 6, "_apply": 6, "binarize": 1}
    assert {name: calls.count(name) for name in once} == {name: once[name] + again[name] for name in once}


def test_a_resumed_preparation_takes_nothing_made_of_other_raw_files(tmp_path, raw, monkeypatch):
    config = DataConfig.from_mapping("x", CONFIG)
    with monkeypatch.context() as patch, pytest.raises(TypeError):
        patch.setattr(prepare_module, "binarize", None)
        prepare_module.prepare(config, raw, tmp_path / "out", resumes=True)
    edit(raw / "test.en", 3, "Another line.")
    for out in ("out", "fresh"):
        prepare_module.prepare(config, raw, tmp_path / out, resumes=out == "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


@pytest.mark.parametrize("joint", [True, False])
def test_only_the_training_text_of_its_languages_decides_what_is_learned(joint, tmp_path, raw):
    bpe = {"size": 30, "joint": joint, "threshold": 3}
    config = DataConfig.from_mapping("x", CONFIG | {"truecase": True, "bpe": bpe})

    def learned(name: str) -> dict[str, bytes]:
        prepare_module.prepare(config, raw, tmp_path / name)
        kinds = ("dict.", "text/bpe.codes", "text/bpe.vocab.", "text/truecase.")
        return {file: content for file, content in contents(tmp_path / name).items() if file.startswith(kinds)}

    first = learned("first")
    for name in ("valid.en", "valid.de", "test.en", "test.de"):
        (raw / name).write_text("we Saw We saw zebras\n" * 6)
    assert learned("other valid and test") == first
    (raw / "train.de").write_text("Das Auto ist Rot und das rote Auto\n" * 40)
    changed = {file for file, content in learned("other German").items() if content != first[file]}
    german = {"dict.de.txt", "text/bpe.vocab.de", "text/truecase.de"}
    german |= {"dict.en.txt", "text/bpe.codes"} if joint else {"text/bpe.codes.de"}
    assert changed - {"text/bpe.vocab.en"} == german
    assert joint or "text/bpe.vocab.en" not in changed


def started(tmp_path: Path, workers: str) -> subprocess.Popen[str]:
    """The command, in the middle of its work."""
    line = [COMMAND, *command(tmp_path, write_raw(tmp_path / "raw", lines=40000), "--workers", workers)]
    running = subprocess.Popen(line, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while not list(tmp_path.glob(".out.part/data/text/train.en")) and running.poll() is None:
        time.sleep(0.02)
    return running


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_command_leaves_nothing_and_prints_one_line(workers, how, tmp_path):
    running = started(tmp_path, workers)
    os.killpg(running.pid, how)  # to every process of the group, like a terminal and `timeout`
    _, said = running.communicate(timeout=60)
    assert running.returncode == 128 + how and "Traceback" not in said
    assert said.endswith("interrupted\n" if how == signal.SIGINT else "stopped by signal 15\n")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine.yaml", "raw"]


def test_files_left_by_kill_9_are_removed_by_the_next_run(tmp_path):
    killed = started(tmp_path, "2")
    killed.kill()
    killed.wait()
    assert (tmp_path / ".out.part").exists()
    raw = tmp_path / "raw"
    for language in WORDS:
        shutil.copy(raw / f"test.{language}", raw / f"train.{language}")
    edit(raw / "train.en", 1, "\0")  # the next one ends soon, with an error
    cli(*command(tmp_path, raw, "--strict"), cwd=tmp_path, fails=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine.yaml", "raw"]
    fields = [p.read_text().rpartition(")")[2].split() for p in Path("/proc").glob("[0-9]*/stat") if p.exists()]
    group = [state for state, _, leader, *_ in fields if leader == str(killed.pid)]
    assert set(group) <= {"Z", "X"}  # its workers died with it; init may not have reaped them yet


def test_data_of_another_hold_out_or_without_counts_are_not_taken_for_those_asked_for(tmp_path, raw):
    config, out = DataConfig.from_mapping("x", CONFIG), tmp_path / "out"
    assert prepare_module.prepare(config, raw, out, hold_out=4)
    assert not prepare_module.prepare(config, raw, out, hold_out=4)
    with pytest.raises(ValueError, match="prepared from another configuration"):
        prepare_module.prepare(config, raw, out, hold_out=5)
    record = json.loads((out / "preprocess.json").read_text())
    for splits, missing in ({}, "train"), ({"train": {}}, "empty"), ({"train": {"empty": 0}}, "replaced"):
        (out / "preprocess.json").write_text(json.dumps(record | {"splits": splits}))
        with pytest.raises(ValueError, match=rf"preprocess\.json: incomplete \({missing}\); prepare the data again"):
            prepare_module.prepare(config, raw, out, hold_out=4)


def test_a_configuration_may_have_any_file_name(tmp_path, raw):
    """Also with bytes that are not UTF-8, as Python reads them in another locale."""
    for name, recorded in (("m\udcc3\udcaf", "mï"), ("m\udcff", "m\ufffd")):
        prepare_module.prepare(DataConfig.from_mapping(name, CONFIG), raw, tmp_path / recorded)
        assert json.loads((tmp_path / recorded / "preprocess.json").read_text(encoding="utf-8"))["name"] == recorded


def test_a_mount_point_is_refused_before_any_work(tmp_path, raw, monkeypatch):
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == tmp_path / "out")
    monkeypatch.setattr(prepare_module, "Steps", None)
    (tmp_path / "out").mkdir()
    with pytest.raises(ValueError, match=r"out: a mount point, .* choose a folder inside it"):
        prepare_module.prepare(DataConfig.from_mapping("x", CONFIG), raw, tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "raw"]


@pytest.fixture
def multi30k() -> Path:
    return shared_data("multi30k")


@pytest.mark.parametrize("target", ["de", "fr", "cs"])
def test_the_reference_survives_the_round_trip(target, multi30k):
    """A system cannot get points for what the target side loses in preparation."""
    config = DataConfig.load(config_path("data", f"multi30k_en_{target}"))
    tokens = Tokens(config.sides["target"])
    reference = lines_of(multi30k / f"{config.files['test']}.{target}")
    again = [tokens.detokenize(tokens.tokenize(line)) for line in reference]
    assert sacrebleu.corpus_bleu(again, [reference]).score > 99.5


@pytest.mark.usefixtures("forks")
def test_the_script_prepares_multi30k_from_any_folder(multi30k, tmp_path):
    (tmp_path / "raw").mkdir()
    for name in ("train", "val", "test_2016_flickr"):
        for language in ("en", "de"):
            text = (multi30k / f"{name}.{language}").read_text(encoding="utf-8").split("\n")[:300]
            (tmp_path / f"raw/{name}.{language}").write_text("\n".join(text) + "\n", encoding="utf-8")
    script("data-prep/prepare-multi30k.sh", "raw", "out", "en-de", "--workers", 1, cwd=tmp_path)
    preprocessing = Preprocessing.load(tmp_path / "out")
    decoded = [preprocessing.decode(line) for line in lines_of(tmp_path / "out/text/bpe.test.de")]
    reference = lines_of(tmp_path / "raw/test_2016_flickr.de")
    assert sum(a == b for a, b in zip(decoded, reference, strict=True)) > 295
