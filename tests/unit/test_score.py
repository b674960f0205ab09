"""Scores equal sacreBLEU's, tests have the right level, and every format of translations is read."""

import json
import math
import random
import re
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest
from scipy import stats

from fairseq_diverse.cli import main
from fairseq_diverse.metrics.scores import (
    language_by_script,
    marks,
    read_translations,
    sacrebleu_metric,
    sacrebleu_result,
    score,
    unseen,
)
from fairseq_diverse.metrics.significance import bleu_scores, interval, p_value, paired_difference, resampled_sums
from fairseq_diverse.metrics.words import check_language, tokenizer_name
from tests.refusals import refused
from tests.unit.conftest import RECORD

WORDS = "der die das Hund Katze läuft, schläft. „weiß“ nicht Zürich 3,5 z.B. (heute) groß-artig und — sehr"


def sentences(seed: int, count: int = 80) -> list[str]:
    numbers = random.Random(seed)
    return [" ".join(numbers.choices(WORDS.split(), k=numbers.randint(3, 15))) for _ in range(count)]


def noisy(lines: list[str], share: float, seed: int) -> list[str]:
    """The lines with a share of their words removed."""
    numbers = random.Random(seed)
    return [" ".join(word for word in line.split() if numbers.random() > share) for line in lines]


REFERENCES = sentences(0)
GOOD, FAIR, POOR = (noisy(REFERENCES, share, 1) for share in (0.1, 0.13, 0.4))


def write(path, lines):
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("flags", [(), ("--lowercase", "--chrf-lowercase")])
def test_scores_equal_the_sacrebleu_command(tmp_path, flags):
    lines = [line.upper() for line in FAIR[:40]] + FAIR[40:]
    hyp, ref = write(tmp_path / "hyp", lines), write(tmp_path / "ref", REFERENCES)
    command = [sys.executable, "-m", "sacrebleu", ref, "-i", hyp, "-m", "bleu", "chrf", "ter", "-w", "4", *flags]
    printed = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    scores = score(lines, REFERENCES, lowercase=bool(flags))
    for name, theirs in zip(("bleu", "chrf", "ter"), printed, strict=True):
        assert getattr(scores, name) == pytest.approx(theirs["score"], abs=1e-4)
        assert scores.signatures[name] == theirs["signature"]
    assert f"ratio = {scores.length_ratio:.3f}" in printed[0]["verbose_score"]
    assert json.loads(json.dumps(scores.as_dict()))["bleu"] == printed[0]["score"]


def test_language_decides_on_the_tokenizer(monkeypatch):
    hypotheses, references = ["我喜欢猫。", "他来了。"], ["我喜欢狗。", "他来了。"]
    chinese = score(hypotheses, references, "zh_CN")
    assert chinese.bleu == BLEU(tokenize="zh").corpus_score(hypotheses, [references]).score
    assert "tok:zh" in chinese.signatures["bleu"] and "asian:yes" in chinese.signatures["ter"]
    assert "tok:13a" in score(hypotheses, references, "de").signatures["bleu"]
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_ja_mecab.MeCab", None)
    refused(r'language ja: .* pip install "sacrebleu\[ja\]"', score, ["猫"], ["猫"], "ja")


def test_bad_hypotheses_score_without_errors():
    scores = score(["", ""], ["eins zwei", "drei"])
    assert scores.bleu == 0 and scores.length_ratio == 0 and scores.ter == 100
    refused("3 hypotheses and 2 references", score, ["a"] * 3, ["a"] * 2)
    refused("0 hypotheses", score, [], [])


def drawn(hypotheses, resamples=10_000):
    """BLEU, and BLEU of resampled sentences."""
    result = sacrebleu_result("bleu", hypotheses, REFERENCES, "")
    return result.score, bleu_scores(resampled_sums(result.statistics, resamples))


def paired_bootstrap(baseline, system, resamples=10_000):
    """The difference in BLEU, and its p-value."""
    (one, before), (other, after) = drawn(baseline, resamples), drawn(system, resamples)
    return other - one, p_value(before, after, other - one)


def test_interval_is_sacrebleus():
    expected = BLEU().corpus_score(FAIR, [REFERENCES], n_bootstrap=1000)
    low, high = interval(drawn(FAIR, 1000)[1])
    assert (high - low) / 2 == pytest.approx(expected._ci, abs=1e-4)
    assert low < score(FAIR, REFERENCES).bleu < high


@pytest.mark.parametrize("resamples", [3, 600])
def test_resamples_are_sums_of_the_drawn_sentences(resamples):
    """In one piece and in several; BLEU of all at once is that of each, with orders that have no match or no n-gram."""
    short = ["Satz", "Das ist", "Das ist der", "", "ein langer Satz , der nicht endet ."]
    cases = ((short, REFERENCES[:5]), (["x"] * 5, REFERENCES[:5]), (short[:2], short[:2]))  # the last: no 3-grams
    longer = [f"{line} {line}" for line in REFERENCES]
    for hypotheses, references in ((FAIR, REFERENCES), (longer, REFERENCES), *cases):
        result = sacrebleu_result("bleu", hypotheses, references, "de")
        counts = result.statistics
        drawn = np.random.default_rng(12345).choice(len(counts), size=(resamples, len(counts)), replace=True)
        expected = [counts[rows].sum(0) for rows in drawn]
        np.testing.assert_array_equal(resampled_sums(counts, resamples), expected)
        scores = [*map(result.combine, expected)]
        np.testing.assert_allclose(bleu_scores(resampled_sums(counts, resamples)), scores, rtol=1e-12)
        assert min(scores) == 0 or hypotheses in (FAIR, longer)


def test_paired_bootstrap_agrees_with_approximate_randomization():
    """Another two-sided test of the same difference, by sacreBLEU."""
    for system in (GOOD, POOR, noisy(REFERENCES, 0.12, 5), noisy(REFERENCES, 0.13, 6)):
        test = PairedTest([("a", FAIR), ("b", system)], {"BLEU": BLEU()}, [REFERENCES], "ar", n_samples=2000)
        expected = test()[1]["BLEU"][1]
        delta, p = paired_bootstrap(FAIR, system)
        assert delta == pytest.approx(expected.score - score(FAIR, REFERENCES).bleu)
        assert p == pytest.approx(expected.p_value, abs=0.05)
    assert paired_bootstrap(FAIR, FAIR) == (0.0, 1.0)
    delta, p = paired_bootstrap(FAIR, POOR)
    assert delta < 0 and p == pytest.approx(1 / 10_001)
    assert paired_bootstrap(POOR, FAIR) == (pytest.approx(-delta), pytest.approx(p))


def test_equal_systems_whose_seeds_are_added_in_another_order_have_p_1():
    seeds = np.random.default_rng(1).random((3, 99))
    before, after = seeds.mean(0), seeds[[2, 0, 1]].mean(0)
    assert not np.array_equal(before, after) and p_value(before, after, 1e-14) == 1


def test_paired_bootstrap_keeps_its_level():
    """If two systems exchange sentences at random, about one pair in ten differs with p < 0.1."""
    one, two = noisy(REFERENCES, 0.2, 7), noisy(REFERENCES, 0.2, 8)
    values = []
    for seed in range(100):
        swap = np.random.default_rng(seed).random(len(one)) < 0.5
        pairs = [(b, a) if s else (a, b) for a, b, s in zip(one, two, swap, strict=True)]
        values.append(paired_bootstrap(*map(list, zip(*pairs, strict=True)), 100)[1])
    assert 0.03 <= np.mean(np.array(values) < 0.1) <= 0.2
    assert 0.35 <= np.mean(values) <= 0.65


def test_paired_difference_is_the_paired_t_test():
    numbers = np.random.default_rng(0)
    a = numbers.normal(3.0, 1.0, 50)
    b = a + numbers.normal(0.1, 0.3, 50)
    mean, error, p = paired_difference(a, b)
    d = [y - x for x, y in zip(a, b, strict=True)]
    assert mean == pytest.approx(sum(d) / 50)
    assert error == pytest.approx(math.sqrt(sum((x - mean) ** 2 for x in d) / 49 / 50))
    assert p == pytest.approx(2 * stats.t.sf(abs(mean / error), 49))
    assert paired_difference(a, a) == (0.0, 0.0, 1.0)
    three, four = (np.mean([[26.561, 3.3, 1.7]] * seeds, axis=0) for seeds in (3, 4))  # equal up to rounding
    assert not np.array_equal(three, four) and paired_difference(three, four)[1:] == (0.0, 1.0)
    assert paired_difference(three, four + 1)[1:] == (0.0, 0.0)
    assert paired_difference([1, 2], [3, 4]) == (2.0, 0.0, 0.0)
    paired = "values of the same sentences, at least two, are needed"
    for a, b, said in (([1, 2], [1, 2, 3], paired), ([1], [2], paired), ([1, 2], [1, math.inf], "infinite or not a")):
        refused(said, paired_difference, np.array(a), np.array(b))


GENERATED = """\
INFO:fairseq_cli.generate:loading model(s)
S-1\tthe cat
T-1\tdie Kat@@ ze
H-1\t-0.5\tdie Kat@@ ze
D-1\t-0.5\tdie Kat@@ ze
P-1\t-0.1 -0.2
H-1\t-0.4\tdie Katze
D-1\t-0.4\tdie Katze
\r  0%|   | 0/2 [00:00<?, ?it/s]S-0\tthe dog\u2028barks
T-0\tder Hund
H-0\t-0.2\tder Hund\u2028bellt
D-0\t-0.2\tder Hund\u2028bellt
S-2\tnothing
H-2\t-inf\t
D-2\t-inf\t
Generate test with beam=5: BLEU4 = 12.00
"""


def test_incomplete_generation_is_refused(tmp_path):
    path = tmp_path / "generate.log"
    for text, message in (
        (GENERATED.replace("H-0", "X-0"), r"1 sentences have no H- line \(0\)"),
        (GENERATED.replace("D-2", "X-2"), r"1 sentences have no D- line \(2\)"),
        (GENERATED.replace("D-2", "D-7"), r"1 sentences have no D- line \(2\)"),
        (GENERATED + "S-1\tagain\n", "sentence 1 comes twice"),
        (GENERATED + "H-99999999999\t0\tx\n", r"99999999996 sentences have no H- line \(3, 4, 5, 6, 7, \.\.\.\)"),
        (GENERATED.replace("H-1\t-0.4", "H-1\tx"), "H-1: the score 'x' is not a number"),
    ):
        path.write_text(text, encoding="utf-8")
        refused(rf"generate\.log: .*{message}", read_translations, path)


def test_hypotheses_with_numbers_and_scores_are_refused(tmp_path):
    path = tmp_path / "hypotheses"
    for start in ("D-{}\t-0.2313\t", "{}\t-1e-05\t"):
        path.write_text("".join(f"{start.format(i)}der Hund\n" for i in (2, 0, 1)), encoding="utf-8")
        refused("hypotheses: lines with a number and a score, not text; give the whole", read_translations, path)


def test_translations_are_text_or_the_best_hypotheses_decoded_by_fairseq_or_by_us(tmp_path, monkeypatch):
    path = tmp_path / "output"
    path.write_text("\n\n")
    assert read_translations(path) == ["", ""]
    path.write_text("eins\n\nH-2 zwei\n", encoding="utf-8")
    assert read_translations(path) == ["eins", "", "H-2 zwei"]
    path.write_text(GENERATED, encoding="utf-8")
    refused(r"in tokens; give --data .*--bpe and --tokenizer", read_translations, path)
    equal = "".join(f"{kind}-1\t-0.4\tdie Maus\n" for kind in "HD")  # fairseq prints the best first
    detokenized = GENERATED.replace("D-0\t-0.2\tder Hund\u2028bellt", "D-0\t-0.2\tDer Hund")
    path.write_text(detokenized + equal, encoding="utf-8")
    assert read_translations(path) == ["Der Hund", "die Katze", ""]

    from fairseq_diverse.preparation import Preprocessing

    monkeypatch.setattr(Preprocessing, "load", lambda data: Preprocessing("en", "de", "", {}, {}, {}))
    monkeypatch.setattr(Preprocessing, "decode", lambda self, line, side: f"{side} {line}")
    assert read_translations(path, tmp_path) == ["target der Hund\u2028bellt", "target die Katze", "target "]
    assert read_translations(path, tmp_path, "source")[1] == "source die Katze"
    path.write_text("".join(line + "\n" for line in GENERATED.split("\n") if "H-" in line), encoding="utf-8")
    assert read_translations(path, tmp_path)[1:] == ["target die Katze", "target "]
    refused(r"in tokens; give --data", read_translations, path)


@pytest.mark.parametrize(
    ("language", "side"), [([], "target"), (["de"], "target"), (["en"], "source"), (["fr"], "target")]
)
def test_the_language_tells_the_side_of_the_data(language, side, tmp_path, monkeypatch, capsys):
    """Of a model that was trained in the other direction."""
    from fairseq_diverse.preparation import Preprocessing

    sides = {"source": {"lowercase": True}, "target": {"lowercase": False}}
    (tmp_path / "preprocess.json").write_text(json.dumps(RECORD | {"config": {"sides": sides}}))
    (tmp_path / "output").write_text(GENERATED, encoding="utf-8")
    (tmp_path / "ref").write_text("".join(f"{side} ein Satz wie dieser {n}\n" for n in range(3)))
    monkeypatch.setattr(Preprocessing, "load", lambda data: Preprocessing("en", "de", "", {}, {}, {}))
    monkeypatch.setattr(Preprocessing, "decode", lambda self, line, side: f"{side} ein Satz wie dieser")
    asked = ["score", "--hyp", str(tmp_path / "output"), "--ref", str(tmp_path / "ref"), "--data", str(tmp_path)]
    asked += ["--json", str(tmp_path / "json"), *(f"--language={one}" for one in language)]
    assert main(asked) == 0
    (row,) = json.loads((tmp_path / "json").read_text())["systems"]
    assert row["bleu"] > 60 and ("case:lc" in row["signatures"]["bleu"]) == (side == "source")


@pytest.fixture
def files(tmp_path):
    lines = {"ref": REFERENCES, "good": GOOD, "fair": FAIR}
    return {name: str(write(tmp_path / name, content)) for name, content in lines.items()}


def test_command_prints_and_writes_every_system(files, tmp_path, output_of):
    out = tmp_path / "scores.json"
    hyps = ["--hyp", files["good"], files["fair"], "--baseline", files["fair"], "--ref", files["ref"]]
    header, first, second = output_of("score", *hyps, "--language", "de", "--json", out).splitlines()[:3]
    assert header.split() == ["system", "BLEU", "±", "chrF", "TER", "length", "Δ", "BLEU", "p"]
    baseline, system = json.loads(out.read_text())["systems"]
    assert first.split()[:2] == [files["fair"], f"{baseline['bleu']:.2f}"] and first.split()[-1] == "baseline"
    delta, p = paired_bootstrap(FAIR, GOOD)
    assert second.split()[0] == files["good"] and second.split()[-2:] == [f"{delta:+.2f}", "<0.001"] and p < 0.001
    assert system["delta"] == pytest.approx(delta, abs=1e-4) and system["p"] == pytest.approx(p, abs=1e-4)
    for test, counts in (("sign", {"resamples"}), ("randomization", {"resamples", "trials"})):
        assert main(["score", *hyps, "--language", "de", "--test", test, "--json", str(out)]) == 0
        written = json.loads(out.read_text())
        assert counts == {"resamples", "trials"} & {*written} and 0 < written["systems"][1]["p"] < 0.01


def test_text_prepared_in_lower_case_is_compared_in_lower_case(files, tmp_path, output_of):
    hyp = str(write(tmp_path / "hyp", [line.lower() for line in REFERENCES]))
    for name, flag, lower in (("cased", False, False), ("asked", False, True), ("prepared", True, True)):
        (tmp_path / name).mkdir()
        sides = {"sides": {"target": {"lowercase": flag}}}
        (tmp_path / name / "preprocess.json").write_text(json.dumps(RECORD | {"config": sides}))
        flags = ["--data", str(tmp_path / name), "--metrics", "bleu,multi-bleu", *["--lowercase"] * (name == "asked")]
        printed = output_of("score", "--hyp", hyp, "--ref", files["ref"], *flags)
        bleu = float(printed.splitlines()[1].split()[1])
        assert (bleu == 100) is lower and ("case:lc" in printed) is ("lower-cased" in printed) is lower


def test_two_tokenized_files_are_named(files, tmp_path, capsys):
    """With what to do, and without sacreBLEU's own lines."""
    (tmp_path / "ref").write_text("Ein Hund läuft .\n" * 120)
    (tmp_path / "hyp").write_text("Ein Hund rennt .\n" * 120)
    assert main(["score", "--hyp", str(tmp_path / "hyp"), "--ref", str(tmp_path / "ref"), "--language", "de"]) == 0
    said = capsys.readouterr().err
    assert f"{tmp_path}/hyp: as the references, has spaces before full stops; is it tokenized? BLEU and chrF" in said
    assert "sacremoses -l LANGUAGE detokenize" in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("old", "new", "has"),
    [
        ("Hund", "Hu@@ nd", "subwords, unlike {}; give raw text for both"),
        (" ", " \u2581", "subwords, unlike {}; give raw text for both"),
        (".", " .", "spaces before full stops, unlike {}; give raw text for both"),
        *(
            ("Katzen", f"Kat{c}zen", f"characters that no eye sees, unlike {{}}: U+{ord(c):04X} in 20 lines")
            for c in "\u00ad\u200b\ufeff\u200c\u2011\u2167\u00b5\ufb01\ufefb\u200f"
        ),
    ],
)
def test_what_only_one_of_two_files_has_is_named(old, new, has, tmp_path, capsys):
    """Subwords, tokens, and characters that no eye sees."""
    text = [f"Der Hund sah {number} Katzen." for number in range(20)]
    write(tmp_path / "text", text)
    write(tmp_path / "other", [line.replace(old, new) for line in text])
    for hypotheses, references in (("other", "text"), ("text", "other"), ("text", "text"), ("other", "other")):
        assert not main(["score", "--hyp", str(tmp_path / hypotheses), "--ref", str(tmp_path / references)])
        warned = f"warning: {tmp_path / 'other'}: has {has.format(tmp_path / 'text')}\n"
        assert capsys.readouterr().err == (warned if hypotheses != references else "")


@pytest.mark.parametrize(("count", "signs"), [(1, set()), (2, {"subwords"})])
def test_more_than_a_tenth_of_the_lines_of_a_text_in_subwords_have_marks(count, signs):
    assert marks(["die Kat@@ ze"] * count + ["der Hund"] * (10 - count)) == signs


@pytest.mark.parametrize(("count", "named"), [(2, {}), (3, {"\u00ad": 3})])
def test_characters_that_the_other_text_has_half_as_often_are_not_named(count, named):
    assert unseen(["Kat\u00adze"] * count, ["Kat\u00adze", "Hund"]) == named


def test_quotes_of_typography_in_one_of_two_files_are_said(tmp_path, capsys):
    curly = ["Er sagt: „Komm!“", "Das wär\u2019s, sagt sie."] + ["Der Hund schläft hier."] * 18
    straight = [line.translate(dict.fromkeys(map(ord, "„“\u2019"), '"')) for line in curly]
    hyp, ref, few = (write(tmp_path / name, lines) for name, lines in
                     (("hyp", straight), ("ref", curly), ("few", [curly[0], *straight[1:]])))  # fmt: skip
    said = f"warning: {ref}: has typographic quotes in 2 lines, {hyp} in 0; for BLEU they are other words"
    for one, other, warned in ((hyp, ref, True), (ref, hyp, True), (few, ref, False), (ref, ref, False)):
        assert main(["score", "--hyp", str(one), "--ref", str(other)]) == 0
        assert capsys.readouterr().err.startswith(said) == warned


@pytest.mark.parametrize("forms", [("NFC", "NFD"), ("NFD", "NFC"), ("NFD", "NFD")])
def test_composed_and_separate_accents_are_the_same_text(forms, tmp_path, capsys):
    lines = ["Der kleine Hund l\u00e4uft \u00fcber die gro\u00dfe Stra\u00dfe.", "\u1ec7 \u212b"] * 3
    hyp, ref = (write(tmp_path / f"{n}", [unicodedata.normalize(form, line) for line in lines])
                for n, form in enumerate(forms))  # fmt: skip
    assert main(["score", "--hyp", str(hyp), "--ref", str(ref)]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[1].split()[1] == "100.00" and out.count("|NFC\n") == 3
    assert f"{(hyp, ref)[forms.index('NFD')]}: letters and accents of 6 lines are composed (NFC) before scoring" in err


@pytest.mark.parametrize(
    ("text", "language", "said"),
    [
        ("我们今天去北京 BBC 旅游。", "zh", "taken for zh by its letters; --language CODE names another"),
        ("今日は東京へ行きます。", "ja", "in ja by its letters (language ja: BLEU needs its tokenizer; install it"),
        ("오늘 서울에 갑니다", "ko", "in ko by its letters (language ko: BLEU"),
        ("วันนี้อากาศดี", "th", "all scores but chrF compare whole phrases, not words"),
        ("ថ្ងៃនេះអាកាស", "km", "in km by its letters (sacreBLEU has no tokenizer for it)"),
        ("ທີ່ນີ້", "lo", "in lo"),
        ("ဒီနေ့", "my", "in my"),
        ("Der Hund heißt 犬.", "", ""),
        ("Собака 123", "", ""),
    ],
)  # fmt: skip
def test_the_letters_of_the_references_tell_the_tokenizer(text, language, said, tmp_path, monkeypatch, capsys):
    sacrebleu_metric.cache_clear()
    for name in ("ja_mecab", "ko_mecab"):
        monkeypatch.setattr(f"sacrebleu.tokenizers.tokenizer_{name}.MeCab", None)
    assert language_by_script([text, ""]) == language
    ref = str(write(tmp_path / "ref", [text] * 3))
    assert main(["score", "--hyp", ref, "--ref", ref]) == 0
    out, err = capsys.readouterr()
    assert ("tok:zh" in out) == (language == "zh") and said in err and err.count("\n") == bool(language)
    assert main(["score", "--hyp", ref, "--ref", ref, "--language", "de"]) == 0
    out, err = capsys.readouterr()
    assert "tok:13a" in out and ("all scores but chrF" in err) == bool(language)


def test_a_file_of_columns_is_not_scored_as_text(files, tmp_path, capsys):
    columns = str(write(tmp_path / "columns", [f"{line}\t{line}" for line in REFERENCES]))
    one = str(write(tmp_path / "one", [REFERENCES[0].replace(" ", "\t", 1), *REFERENCES[1:]]))
    half = str(write(tmp_path / "half", ["", *REFERENCES[:39]] * 2))
    most = str(write(tmp_path / "most", [" "] * 9 + REFERENCES[9:]))
    for hyp, ref, code, said in (
        (files["good"], columns, 2, "columns: columns, with a tab in every line; give each reference as a file, "),
        (columns, files["ref"], 2, "columns: columns, with a tab in every line; give the one with the translations"),
        (files["good"], one, 0, f"warning: {one}: tabs in 1 lines are read as spaces; are they columns?"),
        (files["good"], most, 0, f"warning: {most}: 9 of 80 lines are empty; are their translations missing?"),
        (files["good"], half, 0, ""),
    ):  # fmt: skip
        assert main(["score", "--hyp", hyp, "--ref", ref]) == code
        err = capsys.readouterr().err
        assert said in err if said else "empty" not in err


def test_several_references_are_sacrebleus(files, tmp_path, capsys, error_of):
    refs, out = [files["ref"], files["fair"]], tmp_path / "scores.json"
    asked = ["score", "--hyp", files["good"], "--ref", *refs, "--json", str(out), "--language", "de"]
    assert main([*asked, "--metrics", "bleu,chrf,ter,wer"]) == 0
    assert "wer: compares with one reference; give one --ref" in capsys.readouterr().err
    content = json.loads(out.read_text())
    (row,) = content["systems"]
    for metric, theirs in (("bleu", BLEU()), ("chrf", CHRF()), ("ter", TER())):
        assert row[metric] == pytest.approx(theirs.corpus_score(GOOD, [REFERENCES, FAIR]).score, abs=1e-4)
        assert "nrefs:2" in row["signatures"][metric]
    assert content["ref"] == refs and "wer" in content["missing"]
    short = str(write(tmp_path / "short", REFERENCES[1:]))
    assert f"{short}: 79 sentences, but" in error_of("score", "--hyp", files["good"], "--ref", files["ref"], short)


def test_command_without_baseline_compares_nothing(files, capsys, error_of):
    assert main(["score", "--hyp", files["good"], "--ref", files["ref"]]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["system", "BLEU", "±", "chrF", "TER", "length"]
    assert "--test sign: needs a " in error_of("score", "--hyp", files["good"], "--ref", files["ref"], "--test", "sign")


def test_known_languages_with_and_without_regions():
    for code in ("de", "pt-BR", "zh_CN", "zh-Hant-TW", "tr", "ja", "DE", "yue", "sw"):
        check_language(code)
    for code, known in (("czech", "cs"), ("deu", "de"), ("../de", "de"), ("C", "de")):
        refused(f"--language {code}: not a known language code; give one such as {known}", check_language, code)
    assert (tokenizer_name("de-AT"), tokenizer_name("tr")) == ("Moses de", "Moses tr, which has the rules of en")


def test_errors_of_the_command_are_one_line(files, tmp_path, error_of):
    hyp, out = tmp_path / "hyp", tmp_path / "scores.json"
    of_content = {b"eins\n": r"hyp: 1 sentences, but .*ref has 80", b"": "hyp: empty", b"a\n\xff\n": "hyp, line 2: not"}
    for content, message in of_content.items():
        hyp.write_bytes(content)
        assert re.search(message, error_of("score", "--hyp", hyp, "--ref", files["ref"], "--json", out))
        assert not out.exists()
