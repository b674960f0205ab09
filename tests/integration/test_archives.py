"""Every data set from miniature archives with the original layout, through the scripts and the command."""

import gzip
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from fairseq_diverse.preparation import DataConfig
from fairseq_diverse.preparation.subwords import Subwords
from fairseq_diverse.support.paths import config_path
from fairseq_diverse.support.processes import locked
from tests.archives import tarred, zipped
from tests.integration.commands import cli, script, shared_data
from tests.integration.test_prepare import COMMAND, WORDS, lines_of

LEXICON = WORDS | {
    "fr": ["un", "homme", "marche", "vite", "dans", "la", "vieille", "ville", "et", "regarde", "les", "maisons"],
    "cs": ["muž", "jde", "rychle", "starým", "městem", "a", "dívá", "se", "na", "domy", "v", "noci"],
    "zh": ["男人", "快速", "走过", "老城", "并且", "看", "房子", "晚上", "今天", "城市"],
}
Archives = dict[str, dict[str, bytes]]

pytestmark = pytest.mark.usefixtures("forks")


def sentences(language: str, first: int, count: int = 20) -> list[str]:
    words, numbers = LEXICON[language], range(first, first + count)
    chosen = [[words[(n * 5 + i) % len(words)] for i in range(5 + n % 3)] for n in numbers]
    return [f"{' '.join(words)} {n}." for n, words in zip(numbers, chosen, strict=True)]


def plain(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def sgm(lines: list[str]) -> bytes:
    segments = "".join(f'<seg id="{i}">{line}</seg>\n' for i, line in enumerate(lines, 1))
    return f'<srcset setid="x" srclang="any">\n<doc docid="d">\n<p>\n{segments}</p>\n</doc>\n</srcset>\n'.encode()


def xml(lines: list[str]) -> bytes:
    segments = "".join(f'<seg id="{i}"> {line} </seg>\n' for i, line in enumerate(lines, 1))
    head = '<?xml version="1.0" encoding="UTF-8"?>\n<mteval>\n<refset>\n<doc docid="1">\n<url>http://x</url>\n'
    return f"{head}<title>None of it</title>\n{segments}</doc>\n</refset>\n</mteval>\n".encode()


def tags(lines: list[str]) -> bytes:
    head = "<url>http://x</url>\n<keywords>talks, sea</keywords>\n<speaker>A B</speaker>\n<talkid>1</talkid>\n"
    title, about, *said = lines
    return f"{head}<title>{title}</title>\n<description>{about}</description>\n".encode() + plain(said)


def write(folder: Path, archives: Archives) -> None:
    folder.mkdir()
    for name, members in archives.items():
        made = zipped(members) if name.endswith(".zip") else tarred(members, "w" if name.endswith(".tar") else "w:gz")
        (folder / name).write_bytes(made)


def pair(name: str, form, first: int, *languages: str, count: int = 20) -> dict[str, bytes]:
    """A member for each language; ``name`` is a format string for the language."""
    return {name.format(language): form(sentences(language, first, count)) for language in languages}


def both_sgm(kind: str, year: str, direction: str, source: str, target: str, first: int) -> dict[str, bytes]:
    """WMT's two .sgm files of a test set."""
    return {
        f"{kind}/{year}-{direction}-src.{source}.sgm": sgm(sentences(source, first, 4)),
        f"{kind}/{year}-{direction}-ref.{target}.sgm": sgm(sentences(target, first, 4)),
    }


def iwslt(year: int, talks: tuple[str, ...], folder: str = "de-en") -> dict[str, bytes]:
    members = pair(f"{folder}/train.tags.de-en.{{}}", tags, 0, "de", "en", count=50)
    for number, talk in enumerate(talks):
        members |= pair(f"{folder}/IWSLT{year}.{talk}.de-en.{{}}.xml", xml, 100 + 10 * number, "de", "en", count=3)
    return members | {f"{folder}/README": b"?", f"{folder}/train.en": b"?"}


def with_english(name: str, first: int, *languages: str) -> dict[str, bytes]:
    """Pairs of several languages, each with English."""
    pairs = [pair(f"{name}.{language}-en.{{}}", plain, first, language, "en") for language in languages]
    return {member: content for members in pairs for member, content in members.items()}


def commentary(folder: str, version: int, *languages: str) -> dict[str, bytes]:
    return with_english(f"{folder}/news-commentary-v{version}", 40, *languages)


DEV = {
    **pair("dev/newstest2012.{}", plain, 200, "en", "de", "fr", "cs", count=4),
    **pair("dev/newstest2013.{}", plain, 210, "en", "de", "fr", "cs", count=4),
    **both_sgm("dev", "newstest2015", "ende", "en", "de", 220),
    **both_sgm("dev", "newstest2015", "encs", "en", "cs", 220),
    **both_sgm("dev", "newstest2016", "ende", "en", "de", 230),
    **both_sgm("dev", "newstest2016", "encs", "en", "cs", 230),
    **both_sgm("dev", "newsdev2017", "zhen", "zh", "en", 240),
}
FULL = {
    **both_sgm("test-full", "newstest2014", "deen", "de", "en", 250),
    **both_sgm("test-full", "newstest2014", "deen", "en", "de", 250),
    **both_sgm("test-full", "newstest2014", "csen", "en", "cs", 250),
    **both_sgm("test-full", "newstest2014", "fren", "en", "fr", 250),
}
WMT = {
    "training-parallel-europarl-v7.tgz": with_english("training/europarl-v7", 0, "de", "fr", "cs"),
    "training-parallel-commoncrawl.tgz": with_english("commoncrawl", 20, "de", "fr", "cs")
    | {f"commoncrawl.{language}-en.annotation": b"?\n" for language in ("de", "fr", "cs")},
    "dev.tgz": DEV,
    "test-full.tgz": FULL,
}
WMT17 = WMT | {
    "training-parallel-nc-v12.tgz": commentary("training", 12, "de", "cs", "zh"),
    "rapid2016.tgz": pair("./rapid2016.de-en.{}", plain, 60, "de", "en"),
    "test.tgz": {
        **both_sgm("test", "newstest2017", "ende", "en", "de", 260),
        **both_sgm("test", "newstest2017", "encs", "en", "cs", 260),
        **both_sgm("test", "newstest2017", "zhen", "zh", "en", 260),
    },
}
FRENCH = {
    "training-parallel-nc-v9.tgz": commentary("training", 9, "de", "fr"),
    "training-parallel-un.tgz": pair("un/undoc.2000.fr-en.{}", plain, 60, "fr", "en"),
    "training-giga-fren.tar": pair("giga-fren.release2.fixed.{}.gz", lambda x: gzip.compress(plain(x)), 80, "en", "fr"),
}
CWMT = {
    "casia2015.zip": {"casia2015/casia2015_{}.txt": 80},
    "casict2011.zip": {"casict2011/casict-A_{}.txt": 100, "casict2011/casict-B_{}.txt": 120},
    "casict2015.zip": {"casict2015/casict2015_{}.txt": 140},
    "datum2015.zip": {"datum2015/datum_{}.txt": 160},
    "datum2017.zip": {"datum2017/Book1_{}.txt": 180, "datum2017/Book2_{}.txt": 200},
    "neu2017.zip": {"neu2017/NEU_{}.txt": 220},
}


def cwmt(members: dict[str, int]) -> dict[str, bytes]:
    made = {}
    for name, first in members.items():
        chinese = "cn" if "Book" in name or "NEU" in name else "ch"
        made |= {name.format(chinese): plain(sentences("zh", first)), name.format("en"): plain(sentences("en", first))}
    return made


TALKS_14 = ("TED.dev2010", "TED.tst2010", "TED.tst2011", "TED.tst2012", "TEDX.dev2012")
TALKS_16 = ("TED.dev2010", "TED.tst2010", "TED.tst2011", "TED.tst2012", "TED.tst2013", "TED.tst2014")
NEWSTESTS = {f"newstest20{y}": [(first, 4)] for y, first in ((13, 210), (14, 250), (15, 220), (16, 230), (17, 260))}
NUMBERS = {  # data set: archives; then the numbers of the sentences that each raw file is made of
    "iwslt14_de_en": (
        {"de-en.tgz": iwslt(14, TALKS_14)},
        {"train": [(0, 50)], "test": [(100, 3), (140, 3), (110, 3), (120, 3), (130, 3)]},
    ),
    "iwslt16_de_en": (
        {"2016-01.tgz": {"2016-01/texts/de/en/de-en.tgz": tarred(iwslt(16, TALKS_16)), "2016-01/texts/README": b"?"}},
        {"train": [(0, 50)], "dev": [(100, 3)], "test": [(first, 3) for first in (110, 120, 130, 140, 150)]},
    ),
    "nc11_en_de": (
        {"training-parallel-nc-v11.tgz": commentary("training-parallel-nc-v11", 11, "de", "cs", "fr"), "dev.tgz": DEV},
        {"news-commentary-v11.de-en": [(40, 20)], "newstest2015": [(220, 4)], "newstest2016": [(230, 4)]},
    ),
    "nc11_en_cs": (
        {"training-parallel-nc-v11.tgz": commentary("training-parallel-nc-v11", 11, "de", "cs"), "dev.tgz": DEV},
        {"news-commentary-v11.cs-en": [(40, 20)], "newstest2015": [(220, 4)], "newstest2016": [(230, 4)]},
    ),
    "wmt14_en_de": (
        WMT | {"training-parallel-nc-v12.tgz": WMT17["training-parallel-nc-v12.tgz"]},
        {"train": [(0, 20), (20, 20), (40, 20)], "newstest2013": [(210, 4)], "newstest2014": [(250, 4)]},
    ),
    "wmt14_en_fr": (
        WMT | FRENCH,
        {"train": [(0, 20), (20, 20), (60, 20), (40, 20), (80, 20)], "newstest2012_2013": [(200, 4), (210, 4)],
         "newstest2014": [(250, 4)]},
    ),
    "wmt17_en_de": (WMT17, NEWSTESTS | {"train": [(0, 20), (20, 20), (40, 20), (60, 20)]}),
    "wmt17_en_cs": (
        {name: members for name, members in WMT17.items() if name != "rapid2016.tgz"},
        NEWSTESTS | {"train": [(0, 20), (20, 20), (40, 20)]},
    ),
    "wmt17_zh_en": (
        {
            "training-parallel-nc-v12.tgz": WMT17["training-parallel-nc-v12.tgz"],
            "UNv1.0.en-zh.tar.gz": pair("en-zh/UNv1.0.en-zh.{}", plain, 60, "en", "zh"),
            **{name: cwmt(members) for name, members in CWMT.items()},
            "dev.tgz": DEV,
            "test.tgz": WMT17["test.tgz"],
        },
        {"train": [(n, 20) for n in range(40, 240, 20)], "newsdev2017": [(240, 4)], "newstest2017": [(260, 4)]},
    ),
}  # fmt: skip
BY_COMMAND = ("nc11_en_cs", "wmt14_en_fr")  # one script per campaign is enough: all pass on the name of the pair
# the largest size for which sentencepiece has enough text
SMALL = {"iwslt16_de_en": 90, "wmt17_en_de": 90, "wmt17_en_cs": 70}


@pytest.mark.parametrize("name", NUMBERS)
def test_every_data_set_is_made_from_its_archives(name, tmp_path):
    archives, files = NUMBERS[name]
    write(tmp_path / "archives", archives)
    campaign, source, target = name.split("_")
    if name in (*SMALL, *BY_COMMAND):
        config = OmegaConf.load(config_path("data", name))
        config.bpe.size = SMALL.get(name, config.bpe.size)
        OmegaConf.save(config, tmp_path / f"{name}.yaml")
        flags = ("--archives", "archives", "--out", "out", "--no-download")
        said = cli("prepare", name if name in BY_COMMAND else f"{name}.yaml", *flags, cwd=tmp_path).stderr
    else:
        path = f"data-prep/prepare-{'wmt16' if campaign == 'nc11' else campaign}.sh"
        said = script(path, "archives", "out", f"{source}-{target}", "--no-download", cwd=tmp_path).stderr
    raw = tmp_path / "archives" / name
    for prefix, ranges in files.items():
        for language in (source, target):
            expected = [line for first, count in ranges for line in sentences(language, first, count)]
            assert lines_of(raw / f"{prefix}.{language}") == expected
    assert len(list(raw.iterdir())) == 2 * len(files) + 1  # and sources.json
    splits = json.loads((tmp_path / "out/preprocess.json").read_text())["splits"]
    prepared = OmegaConf.load(config_path("data", name))
    for split, prefix in DataConfig.load(config_path("data", name)).splits.items():
        if prefix in files:  # IWSLT14's validation set is held out
            assert splits[split]["read"] == sum(count for _, count in files[prefix])
    parts = [part for listed in prepared.sources.files.values() for part in listed]
    differing = sum("lines" in part for part in parts) + len(prepared.sources.get("counts", {}))
    assert len(of_counts(said)) == differing  # no miniature has an original's size


def of_counts(said: str) -> list[str]:
    """The warnings but those of subwords and references, for which a miniature is too small."""
    others = ("merges in place of", "the validation references have BLEU")
    return [line for line in said.splitlines() if "warning" in line and not any(text in line for text in others)]


def counted(folder: Path, **counts: int) -> list[object]:
    """The command for IWSLT14 with other counts of pairs, and without counts of lines."""
    config = OmegaConf.load(config_path("data", "iwslt14_de_en"))
    config.sources.counts = counts
    for part in config.sources.files.test:
        part.lines = 3
    OmegaConf.save(config, folder / "mine.yaml")
    return ["prepare", "mine.yaml", "--archives", "archives", "--out", "out"]


def test_every_23rd_pair_that_the_filter_keeps_is_held_out(tmp_path):
    members = iwslt(14, TALKS_14)
    german = sentences("de", 0, 50)
    german[2] = "Ein Wort."  # the ratio drops it: the third pair of the file, so that the 24th becomes the 23rd
    members["de-en/train.tags.de-en.de"] = tags(german)
    write(tmp_path / "archives", {"de-en.tgz": members})
    command = counted(tmp_path, train=47, valid=2, test=15)
    assert not of_counts(cli(*command, "--workers", 2, "--strict-counts", cwd=tmp_path).stderr)
    text, english = tmp_path / "out/text", sentences("en", 0, 50)
    assert lines_of(text / "valid.en") == [english[23], english[46]]
    assert lines_of(text / "train.en") == [english[i] for i in range(50) if i not in (2, 23, 46)]
    assert lines_of(text / "tok.valid.de") == [german[23].lower(), german[46].lower()]


def test_counts_that_differ_are_a_warning_and_with_strict_counts_an_error(tmp_path):
    write(tmp_path / "archives", {"de-en.tgz": iwslt(14, TALKS_14)})
    command = counted(tmp_path, train=160239, valid=2)
    for _ in range(2):
        said = cli(*command, "--strict-counts", cwd=tmp_path, fails=2).stderr.splitlines()[-1]
        assert "train: 48 pairs kept, 160,239 are expected" in said
        assert f"{tmp_path / 'out'} is complete all the same, or leave out --strict-counts" in said
    for flags in ([], ["--accept-counts"]):
        done = cli(*command, *flags, cwd=tmp_path)
        assert done.stdout == f"already prepared: {tmp_path / 'out'}\n"
        assert done.stderr == "warning: train: 48 pairs kept, 160,239 are expected\n"
    config = OmegaConf.load(tmp_path / "mine.yaml")
    config.bpe.size = 50
    OmegaConf.save(config, tmp_path / "mine.yaml")
    assert "add --overwrite" in cli(*command, cwd=tmp_path, fails=2).stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["archives", "mine.yaml", "out"]
    config.sources.files.test[0].lines = 887
    OmegaConf.save(config, tmp_path / "mine.yaml")
    said = cli(*command, "--strict-counts", cwd=tmp_path, fails=2).stderr.splitlines()[-1]
    member = "de-en/IWSLT14.TED.dev2010.de-en.de.xml"
    assert f"de-en.tgz: {member} has 3 lines, 887 are expected; replace the archive, or leave out --strict" in said


def test_two_processes_do_not_work_in_one_folder(tmp_path):
    write(tmp_path / "archives", {"de-en.tgz": iwslt(14, TALKS_14)})
    command = counted(tmp_path)
    for folder in ("archives", ".out.part"):
        with locked(tmp_path / folder):
            said = cli(*command, cwd=tmp_path, fails=2).stderr.splitlines()[-1]
        assert re.search(f"process {os.getpid()} is working on .*{folder}$", said)


def test_offline_the_script_lists_archives_and_folder(tmp_path):
    flags = ("archives", "out", "zh-en", "--no-download")
    said = script("data-prep/prepare-wmt17.sh", *flags, fails=2, cwd=tmp_path).stderr.splitlines()
    assert said[0] == f"fairseq-diverse prepare: 10 archives are missing; put into {tmp_path / 'archives'}:"
    assert "  dev.tgz  https://data.statmt.org/wmt17/translation-task/dev.tgz" in said
    assert [line.split()[0] for line in said if "by hand" in line] == sorted(CWMT)
    asked = ["prepare", "wmt14_en_de", "iwslt16_de_en", "wmt17_zh_en", "--archives", "archives"]
    said = cli(*asked, cwd=tmp_path, fails=2).stderr.splitlines()  # of all, before anything is downloaded
    assert said[0] == f"fairseq-diverse prepare: 7 archives are missing; put into {tmp_path / 'archives'}:"
    assert [line.split()[0] for line in said[1:] if "by hand" in line] == ["2016-01.tgz", *sorted(CWMT)]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("language", ["de", "en"])
def test_bpe_of_iwslt14_equals_that_of_subword_nmt(language):
    folder = shared_data("iwslt14_de-en")
    subwords = Subwords("subword-nmt", folder / "code")
    for split in ("valid", "test"):
        given = folder / f"{split}.tok.{language}"
        command = [COMMAND.with_name("subword-nmt"), "apply-bpe", "--codes", folder / "code", "--input", given]
        theirs = subprocess.run(command, capture_output=True, check=True).stdout.decode()
        assert [subwords.segment(line) for line in lines_of(given)] == theirs.split("\n")[:-1]
        assert "@@" in theirs
