"""Metrics besides sacreBLEU's: equal to the formulas of their papers, highest for the reference, one line if something
is missing. METEOR and COMET are also tested with programs of the same name that record their arguments."""

import json
import math
import random
import re
import shutil
import sys
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest
from scipy import stats

from fairseq_diverse.cli import main
from fairseq_diverse.metrics import programs, words, yisi
from fairseq_diverse.metrics.catalogue import CATALOGUE, Texts, chosen, find
from fairseq_diverse.metrics.scores import sacrebleu_result
from fairseq_diverse.metrics.significance import randomization_p_value, seed_difference, sign_test_p_value
from tests.integration.commands import make_bert
from tests.reference import metrics as loops
from tests.reference import yisi as yisi_loops
from tests.refusals import refused

WORDS = ["der", "die", "ein", "Hund", "Hunde", "Hündin", "läuft", "lief", "Bus-Fahrer", "rot-weiß", ",", ".", "sieht"]


def sentences(seed: int, number: int = 40) -> list[str]:
    numbers = random.Random(seed)
    return [" ".join(numbers.choices(WORDS, k=numbers.randrange(1, 12))) for _ in range(number)]


def noisy(lines: list[str], seed: int) -> list[str]:
    """Words dropped, replaced and exchanged; one line is left empty."""
    numbers = random.Random(seed)
    changed = []
    for line in lines:
        kept = [w if numbers.random() > 0.15 else numbers.choice(WORDS) for w in line.split() if numbers.random() > 0.1]
        if len(kept) > 3 and numbers.random() < 0.5:
            kept[1], kept[2] = kept[2], kept[1]
        changed.append(" ".join(kept))
    return ["", *changed[1:]]


REFERENCES = sentences(0)
FAIR, POOR = noisy(REFERENCES, 1), noisy(noisy(REFERENCES, 2), 3)


def split(lines: list[str]) -> list[list[str]]:
    return [line.split() for line in lines]


@pytest.mark.parametrize("hypotheses", [FAIR, POOR, REFERENCES])
def test_word_metrics_equal_their_loop_versions(hypotheses):
    h, r = split(hypotheses), split(REFERENCES)
    assert words.multi_bleu(hypotheses, REFERENCES).score == pytest.approx(loops.multi_bleu(h, r))
    assert words.word_error_rate(hypotheses, REFERENCES).score == pytest.approx(loops.word_error_rate(h, r))
    assert words.rouge_l(hypotheses, REFERENCES).score == pytest.approx(loops.rouge_l(h, r))
    assert words.cider(hypotheses, REFERENCES).score == pytest.approx(loops.cider(h, r))
    assert yisi.yisi_0(hypotheses, REFERENCES).score == pytest.approx(yisi_loops.yisi_0(h, r))


def test_multi_bleu_is_sacrebleu_without_tokenizer_and_splits_compounds():
    expected = BLEU(tokenize="none", force=True).corpus_score(FAIR, [REFERENCES]).score
    assert words.multi_bleu(FAIR, REFERENCES).score == pytest.approx(expected)
    parts = "a rot ##AT##-##AT## weiß -x- 1 ##AT##-##AT## 2-3 a - b"
    assert words.split_compounds("a rot-weiß -x- 1-2-3 a - b") == parts
    parted = [[re.sub(r"(\w)-(\w)", r"\1 ##AT##-##AT## \2", line) for line in side] for side in (FAIR, REFERENCES)]
    expected = loops.multi_bleu(*map(split, parted))
    assert words.multi_bleu(FAIR, REFERENCES, compounds=True).score == pytest.approx(expected)
    assert words.multi_bleu(["a b c e"], ["a b d e"]).score == 0  # no trigram is right: multi-bleu.perl does not smooth


def test_ter_of_li2022_shifts_where_wer_does_not():
    moved, reference = ["c d a b"], ["a b c d"]
    assert words.ter_of_li2022(moved, reference).score == 25
    assert words.word_error_rate(moved, reference).score == 100
    assert words.ter_of_li2022(["A b"], ["a b"]).score == 50  # with case, as pyter


@pytest.mark.parametrize(
    "name", ["multi-bleu", "multi-bleu-compounds", "wer", "wer-li2022", "rouge-l", "cider", "yisi-0"]
)
def test_references_score_best_and_sums_of_counts_are_the_score(name):
    metric = CATALOGUE[name]
    best, fair, poor = (metric.compute(Texts(side, REFERENCES, "de")) for side in (REFERENCES, FAIR, POOR))
    perfect = {"wer": 0, "wer-li2022": 0}.get(name, 100)
    assert best.score == pytest.approx(perfect) or (name == "cider" and best.score < 10)
    assert (best.score < fair.score < poor.score) if name.startswith("wer") else (best.score > fair.score > poor.score)
    assert fair.score == pytest.approx(fair.combine(fair.statistics.sum(0)))
    assert "tokens:Moses de" in fair.signature and "lower" not in fair.signature
    titled = metric.compute(Texts([line.title() for line in REFERENCES], REFERENCES, "de", lowercase=True))
    assert titled.score == pytest.approx(best.score) or name == "cider"
    assert titled.signature.endswith("|lower-cased")


def test_each_metric_of_a_list_is_computed_once_and_neural_ones_take_a_model():
    assert chosen("ter, bleu,ter") == ["ter", "bleu"] and chosen("ter,all") == list(CATALOGUE)
    assert chosen("comet:a/b, bleu,metricx") == ["comet:a/b", "bleu", "metricx"]
    refused("--metrics blue, x: not known; choose from bleu, ", chosen, "blue,bleu,x")
    refused("--metrics bleu:x: takes no model; comet and metricx do", chosen, "bleu:x")
    refused("--metrics commet:x: not known", chosen, "commet:x")


def test_signatures_say_once_that_texts_are_lower_cased():
    for name, said in (("bleu", 0), ("ter", 0), ("rouge-l", 1)):  # sacreBLEU's say case:lc
        signature = CATALOGUE[name].compute(Texts(FAIR, REFERENCES, "de", lowercase=True)).signature
        assert signature.count("|lower-cased") == said, signature


def test_cider_of_long_references_is_ten():
    lines = [" ".join(f"{word}{number}" for word in "abcdef") for number in range(3)]
    assert words.cider(lines, lines).score == pytest.approx(10)
    refused("no reference has a word", words.cider, ["a"], [""])


def test_tokenizers_of_languages():
    assert words.tokenize("Der Hund-Mann („ja“), z.B. & so.", "de_DE") == "Der Hund-Mann ( „ ja “ ) , z.B. & so ."
    assert words.tokenize("我喜欢猫。", "zh") == "我 喜 欢 猫 。"
    refused("give --language", words.tokenize, "a", "")


def test_yisi_units_of_no_reference_of_one_side_and_empty_sides():
    weights = yisi.UnitWeights([["hund", "Hut"], ["hund"]])
    assert weights(["Hund"]) == weights(["hund"]) < weights(["Hut"]) < weights(["hut"])
    assert yisi.common_substring("Hunde", "Hündin") == yisi_loops.common_substring("Hunde", "Hündin") == 4 / 11
    assert yisi.sentence_score(np.zeros((2, 0)), np.ones(2), np.ones(0)) == 0
    assert yisi.sentence_score(-np.ones((2, 2)), np.ones(2), np.ones(2)) == 0


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    pieces = sorted({w for line in REFERENCES for w in re.findall(r"\w+|[^\w\s]", line)} - {"Hunde"})
    return make_bert(tmp_path_factory.mktemp("bert"), [*pieces, "##e", "##in"])


def embedded(lines: list[str], model: Path, layer: int) -> list[list[tuple[str, list[float]]]]:
    """Units and vectors of each line alone."""
    import torch
    from transformers import BertModel, BertTokenizerFast

    network, tokenizer = BertModel.from_pretrained(model).eval(), BertTokenizerFast.from_pretrained(model)
    found = []
    for line in lines:
        ids = tokenizer(line, return_tensors="pt")
        with torch.no_grad():
            vectors = network(**ids, output_hidden_states=True).hidden_states[layer][0, 1:-1]
        found.append(list(zip(tokenizer.tokenize(line), vectors.tolist(), strict=True)))
    return found


@pytest.mark.parametrize("layer", [-1, 1])
def test_yisi_1_equals_its_loop_version(model, layer):
    hypotheses, references = ["", *FAIR[1:6]], REFERENCES[:6]
    expected = yisi_loops.yisi_1(*(embedded(side, model, layer) for side in (hypotheses, references)))
    result = yisi.yisi_1(hypotheses, references, model, layer)
    assert result.score == pytest.approx(expected, rel=1e-4)
    assert "contextual embeddings not compared with the C++ program" in result.signature
    for lines in (references, ["der " * 50]):  # which is longer than the model's input
        assert yisi.yisi_1(lines, lines, model, layer).score == pytest.approx(100, rel=1e-5)


def test_yisi_1_cuts_sentences_to_the_positions_of_a_roberta(model, tmp_path):
    """Which begin at 2."""
    from transformers import BertTokenizerFast, RobertaConfig, RobertaModel

    BertTokenizerFast(str(model / "vocab.txt")).save_pretrained(tmp_path)  # without a limit of its own
    sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 8}
    RobertaModel(RobertaConfig(vocab_size=60, max_position_embeddings=32, **sizes)).save_pretrained(tmp_path)
    lines = ["der " * 50]
    assert yisi.yisi_1(lines, lines, tmp_path).score == pytest.approx(100, rel=1e-5)


def test_yisi_1_finds_its_model_in_the_environment(model, monkeypatch):
    monkeypatch.setenv("FAIRSEQ_DIVERSE_YISI_MODEL", str(model))
    texts = FAIR[1:4], REFERENCES[1:4]
    assert CATALOGUE["yisi-1"].compute(Texts(*texts)).score == yisi.yisi_1(*texts, model).score


def test_yisi_has_the_figures_that_its_program_publishes():
    """Those of https://github.com/chikiulo/yisi that need no file of embeddings.

    The first of ten English sentences: test/ref/test_hyp.sntyisi0 (commit fd07bfc) and .sntyisi1 (cbd1672), where
    "counter" and "confront" have no embedding, so that only equal words are similar. The words weigh by the ten
    references. And two phrases of words that no reference has: test/ref/phrasesim_test.out (1bc6abf).
    """
    sentence = "A Republican strategy to counter the re - election of Obama"
    reference = sentence.split()
    hypothesis = sentence.replace("counter", "confront").split()
    weights = yisi.UnitWeights([[]] * 10)
    weights.counts = Counter(dict.fromkeys(reference, 1) | {"Republican": 4, "to": 3, "the": 9, "-": 2, "of": 6})
    for similarity, published in ((yisi.common_substring, 0.894586), (lambda e, f: float(e == f), 0.856174)):
        similarities = np.array([[similarity(e, f) for f in hypothesis] for e in reference])
        score = yisi.sentence_score(similarities, weights(reference), weights(hypothesis))
        assert score == pytest.approx(published, abs=5e-7)
    phrases = np.array([[0.487945, 0], [0, 1]])  # of "EU government" and "UK government"
    assert yisi.sentence_score(phrases, np.ones(2), np.ones(2)) == pytest.approx(0.743972, abs=6e-7)


def test_yisi_1_says_what_is_wrong_with_its_model(model, tmp_path):
    refused(r"not a folder of a model .*\(no config.json\)", yisi.yisi_1, ["a"], ["a"], tmp_path)
    refused(rf"^--yisi-model {tmp_path}: not a folder of a model", yisi.use_model, tmp_path)
    refused(r"give --yisi-model DIR, or set FAIRSEQ_DIVERSE_YISI_MODEL", yisi.yisi_1, ["a"], ["a"], None)
    refused("has layers 0 to 2, not 3", yisi.yisi_1, ["a"], ["a"], model, 3)
    shutil.copytree(model, tmp_path / "broken")
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"nothing")
    refused("transformers cannot load it", yisi.yisi_1, ["a"], ["a"], tmp_path / "broken")


def program(folder: Path, name: str, body: str) -> None:
    """A program that writes its arguments and the contents of their files to ``call.json``, then runs ``body``."""
    path = folder / name
    path.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        "names = [name for name in sys.argv[1:] if os.path.isfile(name) and not name.endswith('.jar')]\n"
        "texts = [open(name, encoding='utf-8').read() for name in names]\n"
        f"json.dump([sys.argv[1:], texts], open({str(folder / 'call.json')!r}, 'w'))\n{body}\n"
    )
    path.chmod(0o755)


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """Only programs in the folder are on the PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("language", "options", "text", "said"),
    [
        ("en_GB", ["-l", "en", "-norm"], "Ja, „gut“.", "all modules"),
        ("de", ["-l", "de", "-m", "exact stem", "-norm"], "Ja, „gut“.", r"exact stem \(no table of paraphrases for"),
        ("cs", ["-l", "cz", "-m", "exact", "-norm"], "Ja, „gut“.", r"exact \(no table of paraphrases for cz\)"),
        ("sv", ["-l", "se", "-m", "exact stem", "-lower"], "Ja , „ gut “ .", "exact stem"),
        ("zh", ["-l", "other", "-m", "exact", "-lower"], "Ja , „ gut “ .", "METEOR does not know zh"),
        ("", ["-l", "en", "-norm"], "Ja , „ gut “ .", ""),  # as Li et al. (2022), for every language
    ],
)
def test_meteor_is_called_with_the_resources_of_the_language(fake, language, options, text, said):
    program(fake, "java", "print('0.25')")
    texts = ["Ja, „gut“.", ""], ["Ja, „gut“.", "x"]
    result = programs.meteor(*texts, language) if language else CATALOGUE["meteor-en"].compute(Texts(*texts, "cs"))
    arguments, (hypotheses, references) = json.loads((fake / "call.json").read_text())
    assert arguments[:2] == ["-Xmx2G", "-jar"] and arguments[2].endswith("meteor-1.5.jar")
    assert arguments[5:] == [*options, "-q"]
    assert (hypotheses, references) == (f"{text}\n\n", f"{text}\nx\n")
    assert result.score == 25 and result.statistics.size == 0 and re.search(said, result.signature)


def test_meteor_that_fails_says_so_in_one_line(fake):
    failures = {"sys.exit('Exception: out of memory')": "METEOR failed: Exception: out", "": "METEOR printed no score"}
    for body, message in failures.items():
        program(fake, "java", body)
        refused(message, programs.meteor, ["a"], ["a"], "de")


@pytest.mark.skipif(not shutil.which("java"), reason="no Java on the PATH")
@pytest.mark.parametrize("language", ["de", "cs", "zh"])
def test_real_meteor_knows_every_choice_of_options(language, monkeypatch):
    """Without the English tables, which load slowly."""
    monkeypatch.setenv("LC_ALL", "C")
    lines = ["Die Männer gehen über den grünen Fluss .", "und die Hunde auch .", ""]
    assert programs.meteor(lines, lines, language).score > 95
    changed = programs.meteor(["Die Frau geht über den grünen Fluss .", *lines[1:]], lines, language).score
    assert 20 < changed < programs.meteor(lines, lines, language).score


@pytest.mark.integration
@pytest.mark.skipif(not shutil.which("java"), reason="no Java on the PATH")
def test_real_meteor_finds_english_synonyms_and_stems():
    pair = ["the car drives quickly"], ["the automobile drove quickly"]
    assert programs.meteor(*pair, "en").score > programs.meteor(*pair, "it").score + 20


SEGMENTS = "print('hyp\\tSegment 0\\tscore: 0.5\\nhyp\\tSegment 1\\tscore: 0.75\\nhyp\\tscore: 0.6250')"


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """In the environment of the programs."""
    for name, version in (("unbabel-comet", "2.2.6"), ("pymarian", "1.12.31")):
        folder = tmp_path / f"site/{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))


def test_comet_is_called_on_the_source_and_its_sentences_read(fake, installed):
    program(fake, "comet-score", SEGMENTS)
    result = programs.comet(["h", "i"], ["r", "s"], ["a", "b"], "model.ckpt")
    arguments, texts = json.loads((fake / "call.json").read_text())
    assert arguments[::2][:3] == ["-s", "-t", "-r"] and texts == ["a\nb\n", "h\ni\n", "r\ns\n"]
    assert arguments[6] == "--gpus" and arguments[8:] == ["--model", "model.ckpt"]
    assert result.score == 0.625 and result.statistics[:, 0].tolist() == [0.5, 0.75]
    assert result.signature == "comet-score|model:model.ckpt|version:2.2.6"


def test_comet_by_pymarian(fake, installed):
    """Where comet-score is not there; its log has numbers, too."""
    program(fake, "pymarian-eval", "print('0.500000\\n-0.250000'); print('12 lines', file=sys.stderr)")
    metric = find("comet:Unbabel/wmt22-COMET-da")
    result = metric.compute(Texts(["h", "i"], ["r", "s"], "de", ["a", "b"]))
    arguments, texts = json.loads((fake / "call.json").read_text())
    assert texts == ["a\nb\n", "h\ni\n", "r\ns\n"] and metric.heading == "COMET (wmt22-COMET-da)"
    assert arguments[6:12] == ["-m", "wmt22-comet-da", "-a", "skip", "-w", "6"] and arguments[12] in ("-c", "-d")
    assert result.score == 0.125
    assert result.signature == "pymarian-eval|model:Unbabel/wmt22-COMET-da|version:1.12.31"
    (fake / "own.npz").touch()
    find(f"comet:{fake}/own.npz").compute(Texts(["h\tä", "i"], ["r", "s"], "de", ["a", "b"]))
    arguments, texts = json.loads((fake / "call.json").read_text())
    assert texts[1] == "h ä\ni\n" and arguments[6:10] == ["-m", f"{fake}/own.npz", "-l", "comet"]
    program(fake, "comet-score", SEGMENTS)
    assert programs.comet(["h", "i"], ["r", "s"], ["a", "b"]).signature.startswith("comet-score|model:Unbabel/wmt22-")


def test_comet_that_lacks_something_says_so(fake):
    for sources, message in ((None, "give --source FILE"), (["a"] * 3, "the source has 3 sentences, the reference 2")):
        for metric in (programs.comet, programs.metricx):
            refused(message, metric, ["h", "i"], ["r", "s"], sources)
    refused("neither comet-score nor pymarian-eval is on the PATH; install", programs.comet, ["h"], ["r"], ["a"])
    program(fake, "comet-score", SEGMENTS)
    refused("printed 2 scores for 1 sentences", programs.comet, ["h"], ["r"], ["a"])
    program(fake, "comet-score", "sys.exit('usage\\nerror: not a valid checkpoint\\n')")
    refused("comet-score failed: error: not a valid checkpoint", programs.comet, ["h"], ["r"], ["a"])


PREDICT = (
    "given = sys.argv[1:]; values = dict(zip(given[2::2], given[3::2]))\n"
    "lines = [json.loads(line) for line in open(values['--input_file'])]\n"
    "with open(values['--output_file'], 'w') as out:\n"
    "    out.writelines(json.dumps(line | {'prediction': len(line['hypothesis'])}) + '\\n' for line in lines)\n"
)


def test_metricx_predicts_errors_by_a_checkout(fake, monkeypatch):
    refused(r"FAIRSEQ_DIVERSE_METRICX names no checkout with \.venv/bin/python", programs.metricx, ["h"], ["r"], ["a"])
    (fake / "metricx/.venv/bin").mkdir(parents=True)
    monkeypatch.setenv("FAIRSEQ_DIVERSE_METRICX", str(fake / "metricx"))
    program(fake, "git", "print('abc1234')")
    for model, module, length in (("", "metricx24", "1536"), ("google/metricx-23-xl-v2p0", "metricx23", "1024")):
        program(fake / "metricx/.venv/bin", "python", PREDICT)
        metric = find(f"metricx:{model}" if model else "metricx")
        result = metric.compute(Texts(["abc", "a"], ["r", "s"], "de", ["x", "y"]))
        assert metric.lower and result.score == 2 and result.statistics[:, 0].tolist() == [3, 1]
        arguments, (lines,) = json.loads((fake / "metricx/.venv/bin/call.json").read_text())
        assert arguments[:4] == ["-m", f"{module}.predict", "--tokenizer", "google/mt5-xl"]
        first = {"source": "x", "hypothesis": "abc", "reference": "r"}
        assert arguments[7] == length and json.loads(lines.splitlines()[0]) == first
        wanted = model or "google/metricx-24-hybrid-large-v2p6"
        assert result.signature == f"metricx|model:{wanted}|version:abc1234" and arguments[5] == wanted
        program(fake / "metricx/.venv/bin", "python", "")
        refused("metricx wrote no predictions", metric.compute, Texts(["abc"], ["r"], "de", ["x"]))


def test_programs_of_python_write_utf8_in_any_locale(monkeypatch):
    monkeypatch.delenv("PYTHONUTF8", raising=False)
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    assert programs._run("any", [sys.executable, "-c", "import sys; print(sys.flags.utf8_mode)"]) == "1\n"


def test_missing_packages_are_named(monkeypatch, fake):
    for metric, package in (("wer", "jiwer"), ("rouge-l", "pycocoevalcap"), ("cider", "pycocoevalcap")):
        for name in [name for name in sys.modules if name.split(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)
        said = rf"{package} is not installed; run: pip install .*\[metrics\]"
        refused(said, CATALOGUE[metric].compute, Texts(["a"], ["a"], "de"))
    program(fake, "java", "")
    monkeypatch.setattr(programs, "find_spec", lambda name: None)
    refused(r"meteor-1\.5\.jar of the package pycocoevalcap is missing", programs.meteor, ["a"], ["a"], "de")
    monkeypatch.setitem(sys.modules, "transformers", None)
    refused("transformers is not installed", yisi.yisi_1, ["a"], ["a"], fake)


def test_randomization_is_sacrebleus():
    for name, metric in (("bleu", BLEU()), ("chrf", CHRF())):
        a, b = (sacrebleu_result(name, side, REFERENCES, "") for side in (FAIR, POOR))
        test = PairedTest([("a", FAIR), ("b", POOR)], {name: metric}, [REFERENCES], "ar", n_samples=300)
        p = next(results[1].p_value for key, results in test()[1].items() if key != "System")
        assert randomization_p_value(a.statistics, b.statistics, a.combine, 300) == pytest.approx(p)
        assert randomization_p_value(a.statistics, a.statistics, a.combine, 50) == 1
    one, other = np.array([[0.2]]), np.array([[0.9]])  # swapped, they differ as much, up to rounding
    assert randomization_p_value(one, other, lambda sums: float(sums[0]), 50) == 1


@pytest.mark.parametrize("name", ["bleu", "ter"])
def test_the_sign_test_replaces_one_sentence_at_a_time(name):
    """Collins et al. (2005): the corpus is scored again for each sentence; p by summing the binomial distribution."""

    def corpus(lines):
        return sacrebleu_result(name, lines, REFERENCES, "").score

    changes = [corpus([*POOR[:i], FAIR[i], *POOR[i + 1 :]]) - corpus(POOR) for i in range(len(POOR))]
    higher, lower = sum(x > 1e-9 for x in changes), sum(x < -1e-9 for x in changes)
    number = higher + lower
    tail = sum(math.comb(number, k) for k in range(max(higher, lower), number + 1)) / 2**number
    a, b = (sacrebleu_result(name, side, REFERENCES, "") for side in (POOR, FAIR))
    p = sign_test_p_value(a.statistics, b.statistics, a.combine)
    assert p == pytest.approx(min(1, 2 * tail)) and 0 < p < 0.5 and number > 10
    assert sign_test_p_value(a.statistics, a.statistics, a.combine) == 1


def test_seed_difference_is_welchs_test():
    a, b = [30.1, 30.4, 29.8], [31.0, 30.9, 31.4, 30.2]
    statistic, freedom = loops.welch(a, b)
    difference, p = seed_difference(a, b)
    assert difference == pytest.approx(np.mean(b) - np.mean(a))
    assert p == pytest.approx(2 * stats.t.sf(abs(statistic), freedom))
    with warnings.catch_warnings(action="error"):  # one side does not vary
        assert 0 < seed_difference([0.96] * 3, a)[1] < 0.01
    assert seed_difference([1.0, 1.0], [2.0, 2.0]) == (1, None)
    assert seed_difference([36.55] * 3, [30.7] * 3)[1] is None  # numpy's deviation of these is 1e-15
    refused("two seeds of each system, or more, are needed; got 1 and 3", seed_difference, [1.0], a)


@pytest.fixture
def files(tmp_path):
    lines = {"ref": REFERENCES, "fair": FAIR, "poor": POOR, **{f"s{n}": noisy(REFERENCES, n) for n in (4, 5, 6)}}
    for name, content in lines.items():
        (tmp_path / name).write_text("".join(line + "\n" for line in content), encoding="utf-8")
    return {name: str(tmp_path / name) for name in lines}


def score(files, *arguments: str) -> int:
    return main(["score", "--ref", files["ref"], "--language", "de", *arguments])


def test_command_prints_available_scores_and_a_line_for_each_other(files, fake, capsys):
    out = fake / "scores.json"
    assert score(files, "--hyp", files["fair"], "--metrics", "bleu,all", "--json", str(out)) == 0
    captured = capsys.readouterr()
    lacking = {"meteor": "Java is not on", "meteor-en": "Java is not on", "yisi-1": "--yisi-model", "comet": "--source"}
    lacking["metricx"] = "--source"
    for line, (metric, reason) in zip(captured.err.splitlines(), lacking.items(), strict=True):
        assert line.startswith(f"fairseq-diverse score: {metric}: ") and reason in line
    written = json.loads(out.read_text())
    (system,) = written["systems"]
    assert set(written["missing"]) == set(lacking) and set(system["signatures"]) == set(CATALOGUE) - set(lacking)
    for metric in system["signatures"]:
        assert f"{system[metric]:.2f}" in captured.out and CATALOGUE[metric].heading in captured.out


def test_command_gives_models_and_layers_to_the_metrics(files, fake, model, capsys, monkeypatch):
    body = f"print('hyp\\tSegment 0\\tscore: 0.5\\n' * {len(REFERENCES)} + 'hyp\\tscore: 0.5')"
    program(fake, "comet-score", body)
    flags = ["--yisi-model", str(model), "--yisi-layer", "0", "--source", files["ref"], "--comet-model", "a/model"]
    (fake / "metricx/.venv/bin").mkdir(parents=True)
    monkeypatch.setenv("FAIRSEQ_DIVERSE_METRICX", str(fake / "metricx"))
    program(fake / "metricx/.venv/bin", "python", PREDICT)
    (fake / "git").write_text("#!/bin/sh\n")
    (fake / "git").chmod(0o755)
    out = fake / "scores.json"
    assert score(files, "--hyp", files["fair"], "--metrics", "yisi-1,comet,metricx", "--json", str(out), *flags) == 0
    (system,) = json.loads(out.read_text())["systems"]
    assert "|layer:0|" in system["signatures"]["yisi-1"] and "|model:a/model" in system["signatures"]["comet"]
    assert "|model:google/metricx-24-hybrid-large-v2p6|" in system["signatures"]["metricx"]
    assert json.loads((fake / "call.json").read_text())[0][-2:] == ["--model", "a/model"]


def test_command_refuses_what_it_does_not_know_or_cannot_compute(files, fake, capsys):
    fair, poor = files["fair"], files["poor"]
    for arguments, message in (
        (["--hyp", fair, "--metrics", "bleu,blue"], "--metrics blue: not known; choose from bleu, chrf"),
        (["--hyp", fair, "--test-metric", "wer"], "--test-metric wer: not one of --metrics bleu,chrf,ter"),
        (["--system", fair], f"{fair}: write NAME=FILE,FILE,..."),
        (["--system", f"a={fair}", f"a={poor}"], "--system a: named twice"),
        (["--system", f"a={fair}", "--baseline", "b"], "--baseline b: not one of the systems a"),
        (["--system", f"a={fair},{fair}"], "the same file twice; a seed has a file of its own"),
        (["--system", f"a={fair},{poor}", f"b={poor}", "--test", "randomization"], "--test randomization: is of one"),
        (["--hyp", fair, "--metrics", "meteor"], "meteor"),
        (["--hyp", fair, "--metrics", "wer,meteor", "--test-metric", "meteor"], "meteor"),  # after the WER
    ):
        assert score(files, *arguments) == 2
        said = capsys.readouterr()
        assert message in said.err and ("WER" in said.out) == bool(said.out) == ("wer,meteor" in arguments)
        assert len(said.err.splitlines()) == 1 or "meteor" not in message


def test_meteor_alone_has_no_interval_and_no_sentence_test(files, fake, capsys):
    program(fake, "java", "print('0.25')")
    arguments = ["--hyp", files["fair"], "--baseline", files["poor"], "--metrics", "meteor"]
    assert score(files, *arguments) == 0
    assert "METEOR has no counts by sentence" in capsys.readouterr().out
    assert score(files, *arguments, "--test-metric", "meteor") == 2
    assert "no counts by sentence to resample" in capsys.readouterr().err


def test_command_tests_any_metric_of_sentences(files, tmp_path, capsys):
    out = tmp_path / "scores.json"
    arguments = ["--hyp", files["fair"], "--baseline", files["poor"], "--metrics", "wer,chrf", "--json", str(out)]
    for name, compute in (("wer", words.word_error_rate), ("chrf", lambda *x: sacrebleu_result("chrf", *x, "de"))):
        assert score(files, *arguments, "--test", "randomization", "--test-metric", name) == 0
        baseline, system = json.loads(out.read_text())["systems"]
        before, after = (compute(side, REFERENCES) for side in (POOR, FAIR))
        assert baseline["p"] is None and system["delta"] == pytest.approx(after.score - before.score, abs=1e-4)
        expected = randomization_p_value(before.statistics, after.statistics, before.combine)
        assert system["p"] == pytest.approx(expected, abs=1e-4)
        assert "approximate randomization, 10,000 trials" in capsys.readouterr().out
    assert score(files, *arguments, "--test", "sign", "--test-metric", "wer") == 0
    assert "p: sign test (Collins et al., 2005) against the baseline, two-sided" in capsys.readouterr().out


def test_command_shows_seeds_and_tests_them(files, tmp_path, capsys):
    out = tmp_path / "scores.json"
    several = [f"new={files['s4']},{files['s5']},{files['s6']}", f"old={files['fair']},{files['poor']}"]
    seeds = [*several, f"one={files['s4']}"]
    assert score(files, "--system", *seeds, "--baseline", "old", "--metrics", "bleu,wer", "--json", str(out)) == 0
    header, *lines = capsys.readouterr().out.splitlines()[:4]
    assert header.split() == ["system", "BLEU", "WER", "length", "Δ", "BLEU", "p", "seeds"]
    assert [line.split()[0] for line in lines] == ["old", "new", "one"]
    values = {
        name: [BLEU().corpus_score(side, [REFERENCES]).score for side in sides]
        for name, sides in {"old": (FAIR, POOR), "new": [noisy(REFERENCES, n) for n in (4, 5, 6)]}.items()
    }
    old, new, one = json.loads(out.read_text())["systems"]
    for row in (old, new):
        expected = values[row["system"]]
        assert row["bleu"] == pytest.approx(np.mean(expected), abs=1e-4)
        assert row["bleu_deviation"] == pytest.approx(np.std(expected, ddof=1), abs=1e-4)
        assert row["bleu_seeds"] == pytest.approx(expected, abs=1e-4)
    assert (new["delta"], new["p"]) == pytest.approx(seed_difference(values["old"], values["new"]), abs=1e-4)
    assert old["p"] is one["p"] is None and one["bleu_deviation"] is None
    assert f"{new['bleu']:.2f} ± {new['bleu_deviation']:.2f}" in lines[1] and lines[1].split()[-1] == "3"


def test_systems_of_one_file_are_compared_by_sentences(files, capsys):
    assert score(files, "--system", f"a={files['fair']}", f"b={files['poor']}", "--metrics", "ter") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["system", "TER", "±", "Δ", "TER", "p"]
    assert [line.split()[0] for line in lines[1:3]] == ["a", "b"] and "paired bootstrap" in lines[-1]
