"""fairseq's features of decoding with mechanisms: the rows of ``docs/features.md``."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils

from fairseq_diverse.attention.request import AttentionRequest
from fairseq_diverse.models.diverse_transformer import DiverseTransformerModel
from fairseq_diverse.preparation import Preprocessing
from tests.integration.commands import DEVICES, TINY, run
from tests.integration.training import DISAGREEMENT, figures, refused, train

ROUTING = "--routing em --routing-on encoder:1,decoder:1,cross:2"
SYSTEM = f"{ROUTING} {DISAGREEMENT}"
LANGUAGE_MODEL = (
    "--task language_modeling --arch transformer_lm --decoder-layers 1 --decoder-embed-dim 16 "
    "--decoder-ffn-embed-dim 16 --decoder-attention-heads 2 --tokens-per-sample 20 --optimizer adam --lr 0.01 "
    "--max-tokens 400 --cpu --num-workers 0 --disable-validation"
)
DECODING = "--cpu --num-workers 0 --beam 2 --min-len 3 --max-len-b 6"
Hypotheses = list[tuple[int, str, list[float]]]


def printed(log: str, letter: str) -> dict[int, list[str]]:
    """fairseq's lines H, P, A, ... for each sentence, one entry per hypothesis."""
    lines: dict[int, list[str]] = {}
    for number, text in re.findall(rf"^{letter}-(\d+)\t(.*)$", log, re.MULTILINE):
        lines.setdefault(int(number), []).append(text)
    return lines


def generate(
    data: Path, path: str | Path, *flags: object, tool: str = "generate", device: str = "cpu"
) -> tuple[Hypotheses, str]:
    """Hypotheses as (sentence, words, base-2 logarithms of the tokens' probabilities), and the whole output."""
    decoding = DECODING if device == "cpu" else DECODING.replace("--cpu", "")
    output = run(tool, data, "--path", path, *decoding.split(), *flags).stdout
    hypotheses = [
        (number, line.split("\t")[1], [float(p) for p in scores.split()])
        for number, lines in printed(output, "H").items()
        for line, scores in zip(lines, printed(output, "P")[number], strict=True)
    ]
    assert len({number for number, _, _ in hypotheses}) == 8
    return sorted(hypotheses), output


def load(*paths: Path, **overrides: Any) -> list[Any]:
    models, _, _ = checkpoint_utils.load_model_ensemble_and_task([str(p) for p in paths], arg_overrides=overrides)
    return [model.eval() for model in models]


def source(data: Path, number: int) -> str:
    return (data.parent / "test.en").read_text().splitlines()[number]


@torch.no_grad()
def forced(
    models: list[Any], data: Path, number: int, hypothesis: str, request: AttentionRequest | None = None
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Each token's probability under teacher forcing, averaged over models, and the result of the last model."""
    probabilities = []
    for model in models:
        texts = (model.encoder.dictionary, source(data, number)), (model.decoder.dictionary, hypothesis)
        src, tgt = (words.encode_line(text, add_if_not_exist=False).long()[None] for words, text in texts)
        output = model(src, torch.tensor([src.size(1)]), tgt.roll(1, 1), attention_request=request)
        probabilities.append(model.get_normalized_probs(output, log_probs=False).gather(-1, tgt[..., None])[0, :, 0])
    return torch.stack(probabilities).mean(0), output[1]


def assert_scores(data: Path, hypotheses: Hypotheses, *models: Any, tolerance: float = 2e-3) -> None:
    """The scores of step-by-step decoding equal those of one full pass of models, or of those of checkpoints."""
    loaded = load(*models) if isinstance(models[0], Path) else [*models]
    for number, text, scores in hypotheses:
        assert scores == pytest.approx(forced(loaded, data, number, text)[0].log2().tolist(), abs=tolerance), text


def assert_decodes(data: Path, path: Path, *flags: object) -> Hypotheses:
    """What fairseq-generate finds has the scores of one full pass."""
    hypotheses, _ = generate(data, path, *flags)
    assert_scores(data, hypotheses, path)
    return hypotheses


@pytest.fixture(scope="module")
def folder(data, tmp_path_factory):
    """Two models with routing, trained with disagreement: ``1.pt`` and ``2.pt``."""
    made = tmp_path_factory.mktemp("trained")
    for seed in (1, 2):
        train(data, made / "run", f"{SYSTEM} --lr 0.003 --seed {seed}", updates=12)
        (made / "run/checkpoint_last.pt").rename(made / f"{seed}.pt")
        shutil.rmtree(made / "run")
    return made


@pytest.fixture(scope="module")
def checkpoint(folder):
    return folder / "1.pt"


@pytest.fixture(scope="module")
def references(data):
    return (data.parent / "test.de").read_text().splitlines()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("flags", "tolerance"), [("--nbest 2", 2e-3), ("--fp16 --nbest 2", 0.05)])
def test_generate_equals_teacher_forcing(data, checkpoint, device, flags, tolerance):
    hypotheses, _ = generate(data, checkpoint, *flags.split(), device=device)
    assert len(hypotheses) == 16
    assert_scores(data, hypotheses, checkpoint, tolerance=tolerance)


def test_score_reference(data, checkpoint, references):
    assert [text for _, text, _ in assert_decodes(data, checkpoint, "--score-reference")] == references


def test_ensemble(data, folder):
    paths = [folder / "1.pt", folder / "2.pt"]
    assert_scores(data, generate(data, ":".join(map(str, paths)))[0], *paths)


def test_sampling(data, checkpoint):
    flags = ("--sampling", "--sampling-topk", 5, "--nbest", 2, "--seed")
    one, again, other = (assert_decodes(data, checkpoint, *flags, seed) for seed in (1, 1, 2))
    assert one == again != other


def test_prefix_size(data, checkpoint, references):
    for number, text, _ in assert_decodes(data, checkpoint, "--prefix-size", 2):
        assert text.split()[:2] == references[number].split()[:2]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--min-len 50", "--min-len: longer than a translation may be"),
        ("--tokenizer moses", "--tokenizer moses: needs --source-lang and --target-lang"),
        ("--max-tokens 3", "--max-tokens 3: less than the longest sentence has"),
        ("--bpe subword_nmt", "--bpe: needs bpe_codes, the file"),
        ("--skip-invalid-size-inputs-valid-test --max-source-positions 2", "none of the 8 sentences is within the (2,"),
    ],
)
def test_impossible_flags_of_decoding_are_one_line(data, checkpoint, flags, message):
    last = refused("generate", data, "--path", checkpoint, *DECODING.split(), *flags.split()).splitlines()[-1]
    assert last.startswith("error: ") and message in last


@pytest.mark.parametrize("kind", ["ordered", "unordered"])
def test_constraints(data, checkpoint, tmp_path, kind):
    (tmp_path / "input").write_text("".join([f"{source(data, number)}\tw3 w4\tw{number}\n" for number in range(8)]))
    flags = ("--input", tmp_path / "input", "--constraints", kind, "--beam", 4)
    hypotheses, _ = generate(data, checkpoint, *flags, tool="interactive")
    for number, text, _ in hypotheses:
        assert "w3 w4" in text and f"w{number}" in text.split()
        if kind == "ordered":
            assert f"w{number}" in text.split("w3 w4", 1)[1].split()
    assert_scores(data, hypotheses, checkpoint)


def test_interactive(data, checkpoint):
    hypotheses, _ = generate(data, checkpoint, "--input", data.parent / "test.en", tool="interactive")
    assert_scores(data, hypotheses, checkpoint)
    assert [text for _, text, _ in hypotheses] == [text for _, text, _ in generate(data, checkpoint)[0]]


def test_from_pretrained(data, checkpoint):
    hub = DiverseTransformerModel.from_pretrained(str(checkpoint.parent), checkpoint.name, str(data))
    translated = hub.translate([source(data, n) for n in range(8)], beam=2, min_len=3, max_len_b=6)
    assert translated == [text for _, text, _ in generate(data, checkpoint)[0]]


def test_from_pretrained_in_a_program_that_imports_no_fairseq_before(data, checkpoint):
    program = "from fairseq_diverse.models.diverse_transformer import DiverseTransformerModel as Model\n"
    program += f"hub = Model.from_pretrained({str(checkpoint.parent)!r}, {checkpoint.name!r}, {str(data)!r})\n"
    program += "print(type(hub.models[0]).__name__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "DiverseTransformerModel\n", done.stderr[-3000:]


@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_print_alignment(data, checkpoint, kind):
    """The map of the last cross-attention, averaged over heads."""
    hypotheses, output = generate(data, checkpoint, "--print-alignment", kind)
    alignments, models = printed(output, "A"), load(checkpoint)
    for number, text, _ in hypotheses:
        _, extra = forced(models, data, number, text, AttentionRequest(weights="cross:2"))
        weights = extra["maps"]["cross", 2].mean(0)[0]  # (T, S)
        lines = alignments[number][0].split()
        if kind == "soft":
            shown = torch.tensor([[float(p) for p in line.split(",")] for line in lines])
            torch.testing.assert_close(shown, weights, rtol=0, atol=1e-5)
        else:
            pairs = [tuple(map(int, pair.split("-"))) for pair in lines]
            assert [t for _, t in pairs] == list(range(len(text.split())))
            chosen = weights[range(len(pairs)), [s for s, _ in pairs]]
            torch.testing.assert_close(chosen, weights[:-1, :-1].max(1).values, rtol=0, atol=1e-5)


@pytest.mark.parametrize("arch", ["transformer_tiny", "diverse_transformer_tiny"])
def test_replace_unk_is_broken_in_fairseq_itself(data, checkpoint, tmp_path, arch):
    """If this fails one day, fairseq has been fixed: move the row in ``docs/features.md``."""
    (tmp_path / "raw").mkdir()
    for language in ("en", "de"):
        shutil.copy(data / f"dict.{language}.txt", tmp_path / "raw")
        shutil.copy(data.parent / f"test.{language}", tmp_path / f"raw/test.en-de.{language}")
    if arch == "transformer_tiny":
        train(data, tmp_path, updates=1, base=TINY.replace("diverse_transformer_tiny", arch))
        checkpoint = tmp_path / "checkpoint_last.pt"
    flags = (*DECODING.split(), "--dataset-impl", "raw", "--unkpen", -100, "--replace-unk", "")
    for alignment in ((), ("--print-alignment",)):
        failed = run("generate", tmp_path / "raw", "--path", checkpoint, *flags, *alignment, check=False)
        assert failed.returncode != 0 and "fairseq/utils.py" in failed.stderr and "in replace_unk" in failed.stderr


def test_language_model(data, checkpoint, tmp_path):
    folder, path = shutil.copytree(data, tmp_path / "data"), tmp_path / "checkpoint_last.pt"
    words = folder / "dict.txt"  # where --lm-path looks for it
    shutil.copy(data / "dict.de.txt", words)
    run("preprocess", "--only-source", "--trainpref", data.parent / "train.de", "--srcdict", words,
        "--destdir", tmp_path / "bin")  # fmt: skip
    train(tmp_path / "bin", tmp_path, updates=5, base=LANGUAGE_MODEL)
    flags = ("--lm-path", path, "--lm-weight", 0.5)
    (model,), (language_model,) = load(checkpoint), load(path, data=str(folder))
    for number, text, scores in generate(folder, checkpoint, *flags)[0]:
        tokens = model.decoder.dictionary.encode_line(text, add_if_not_exist=False).long()[None]
        with torch.no_grad():
            output = language_model(tokens.roll(1, 1))
        logs = language_model.get_normalized_probs(output, log_probs=True).gather(-1, tokens[..., None])[0, :, 0]
        expected = forced([model], data, number, text)[0].log() + 0.5 * logs
        assert scores == pytest.approx((expected / torch.tensor(2.0).log()).tolist(), abs=2e-3)
    said = refused("generate", folder, "--path", checkpoint, *DECODING.split(), "--lm-path", checkpoint)
    assert said.splitlines()[-1] == "error: --lm-path: not a language model"
    words.write_text("".join(reversed(words.read_text().splitlines(keepends=True))))
    said = refused("generate", folder, "--path", checkpoint, *DECODING.split(), *flags)
    assert "the source dictionary has other words" in said.splitlines()[-1]


def test_several_language_pairs(data, tmp_path, error_of, monkeypatch):
    """One model of both directions; our commands, which know one pair, refuse it in one line."""
    task = "--task translation_multi_simple_epoch --lang-pairs en-de,de-en --langs en,de --decoder-langtok"
    logged = figures(train(data, tmp_path, f"{SYSTEM} {task} --disable-validation", updates=4))["disagreement"]
    assert len(logged) == 4 and max(logged) < 0
    path = tmp_path / "checkpoint_last.pt"
    hypotheses, _ = generate(data, path, *task.split(), "--source-lang", "en", "--target-lang", "de")
    hypotheses = [(number, f"__de__ {text}", scores) for number, text, scores in hypotheses]  # it prints no such word
    assert_scores(data, hypotheses, path)
    monkeypatch.setattr(Preprocessing, "load", lambda data: None)  # fairseq-preprocess wrote the data
    monkeypatch.setattr("fairseq_diverse.cli.translate.read_record", lambda data: None)
    for command in (
        f"heads --checkpoint {path}",
        f"translate --checkpoint {path} --input x --cpu",
        f"plot attention --path {path} --source w1 --layer 1 --out x.png",
        f"plot head-map a={path} b={path} --out x.png",
    ):
        assert f"{path}: trained for another task than translation" in error_of(*command.split(), "--data", data)


def test_the_other_direction_is_refused(data, tmp_path):
    """fairseq takes the direction from the names of the data files, and a joined dictionary has the words of both."""
    train(data, tmp_path, "--source-lang de --target-lang en", updates=1)
    flags = (data, "--path", tmp_path / "checkpoint_last.pt", *DECODING.split())
    assert "translates from de to en; give --source-lang de" in refused("generate", *flags).splitlines()[-1]
    run("generate", *flags, "--source-lang", "de", "--target-lang", "en")
    run("generate", *flags, "--model-overrides", "{'source_lang': 'en', 'target_lang': 'de'}")  # as the message says
