"""What fairseq does wrong without an error is corrected."""

import itertools
import sys
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from fairseq import options
from fairseq.data import LanguagePairDataset
from fairseq.data.indexed_dataset import IndexedDatasetBuilder, make_dataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.optim import AMPOptimizer
from fairseq.search import (
    BeamSearch,
    DiverseBeamSearch,
    DiverseSiblingsSearch,
    LengthConstrainedBeamSearch,
    LexicallyConstrainedBeamSearch,
)
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment
from fairseq.sequence_scorer import SequenceScorer
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from fairseq.token_generation_constraints import pack_constraints
from fairseq_cli import interactive
from omegaconf import OmegaConf

from fairseq_diverse import register
from fairseq_diverse.support.errors import UserError, install_error_hook
from fairseq_diverse.support.faults import RepeatedNgrams
from fairseq_diverse.testing.models import batch, build_model, dictionary

register()  # where this file runs alone


@pytest.mark.parametrize("scale", [1.0, 128.0, 65536.0])
def test_amp_divides_gradients_by_the_loss_scale_once(scale):
    common = {"fp16_init_scale": 1, "amp_scale_window": None, "min_loss_scale": 1e-4}
    optimizer = {"_name": "sgd", "lr": [0.1], "momentum": 0.0, "weight_decay": 0.0}
    parameter = torch.nn.Parameter(torch.ones(1))
    amp = AMPOptimizer.build_optimizer(OmegaConf.create({"common": common, "optimizer": optimizer}), [parameter])
    amp._grad_scaler = torch.amp.GradScaler("cpu", init_scale=scale)  # as torch.cuda.amp.GradScaler on a GPU
    amp.backward((3 * parameter).sum())
    assert amp.clip_grad_norm(0.0).item() == pytest.approx(3)
    amp.step()
    assert parameter.item() == pytest.approx(1 - 0.1 * 3)


def test_cached_data_are_read_before_they_are_in_memory(tmp_path):
    """As fairseq-train reads its first batch; items are in memory only after fairseq's prefetching."""
    builder = IndexedDatasetBuilder(str(tmp_path / "data.bin"))
    sentences = [torch.tensor([number, number + 1, 2]) for number in range(4, 9)]
    for sentence in sentences:
        builder.add_item(sentence)
    builder.finalize(str(tmp_path / "data.idx"))
    data = make_dataset(str(tmp_path / "data"), "cached", fix_lua_indexing=True)
    for number in (3, 0, 4):
        assert torch.equal(data[number], sentences[number])
    data.prefetch(range(len(data)))
    assert len(data.cache_index) == len(data) and torch.equal(data[1], sentences[1]) and len(data.cache_index) == 5


SEARCHES = {
    "beam": BeamSearch,
    "groups": partial(DiverseBeamSearch, num_groups=2, diversity_strength=2.0),
    "siblings": partial(DiverseSiblingsSearch, diversity_rate=0.5),
    "length": partial(LengthConstrainedBeamSearch, min_len_a=0.2, min_len_b=0, max_len_a=2, max_len_b=0),
}

Constrained = partial(LexicallyConstrainedBeamSearch, representation="ordered")


@pytest.mark.parametrize("kind", [SequenceGenerator, SequenceGeneratorWithAlignment])
@pytest.mark.parametrize("search", SEARCHES)
def test_a_batch_is_searched_as_each_of_its_sentences_alone(search, kind):
    """Whatever the sentences' numbers, and while others leave the batch."""
    words, model = dictionary(), build_model(seed=8).eval()
    model.decoder.output_projection.weight.data[words.eos()] *= 5  # translations end at different steps
    generator = kind([model], words, beam_size=4, max_len_b=20, search_strategy=SEARCHES[search](words))

    def translate(numbers, inputs):
        sample = {"id": torch.tensor(numbers), "net_input": inputs, "target": inputs["prev_output_tokens"]}
        found = generator.generate([model], sample)
        return [[hypothesis["tokens"].tolist() for hypothesis in sentence] for sentence in found]

    inputs = batch(parsed=False)
    together = translate([900, 1, 40], inputs)
    for place, sentence in enumerate(together):
        assert translate([5], {key: value[place : place + 1] for key, value in inputs.items()}) == [sentence]
    assert len({max(map(len, sentence)) for sentence in together}) > 1


@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_ngram_is_repeated_after_a_prefix(size):
    words, model = dictionary(), build_model(seed=8).eval()
    limits = {"min_len": 15, "max_len_b": 20, "no_repeat_ngram_size": size}
    generator = SequenceGenerator([model], words, beam_size=4, **limits)
    torch.jit.script(generator.repeat_ngram_blocker)
    forced = [7, 7, 7, 7]
    for prefix in ([], forced):
        given = torch.tensor([prefix] * 3) if prefix else None
        found = generator.generate([model], {"net_input": batch(parsed=False)}, prefix_tokens=given)
        for hypothesis in itertools.chain(*found):
            tokens = hypothesis["tokens"].tolist()
            later = tokens[len(prefix) :]
            ngrams = [tuple(later[at : at + size]) for at in range(len(later) - size + 1)]
            assert tokens[: len(prefix)] == prefix and len(set(ngrams)) == len(ngrams)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_only_words_that_repeat_an_ngram_are_blocked(size):
    tokens = torch.randint(4, 8, (6, 13), generator=torch.Generator().manual_seed(1))
    tokens[:, 0] = 2  # </s>, with which fairseq begins
    for step in range(12):
        blocked = RepeatedNgrams(size)._no_repeat_ngram(tokens, torch.zeros(6, 10), 6, 1, step).isinf()
        for row in range(6):
            written = tokens[row, 1 : step + 1].tolist()
            ngrams = {tuple(written[at : at + size]) for at in range(step - size + 1)}
            assert blocked[row].tolist() == [(*written[step + 1 - size :], word) in ngrams for word in range(10)]


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (
            BeamSearch,
            [torch.arange(5, 8)],
            "--constraints: without --sampling, --diverse-beam-groups, --diversity-rate",
        ),
        (Constrained, [torch.arange(5, 15)], "--constraints: longer than a translation may be by --max-len-a"),
        (Constrained, None, "--constraints: only fairseq-interactive reads them"),
    ],
)
def test_constraints_that_cannot_be_met_are_one_line(kind, given, message, capsys, monkeypatch):
    monkeypatch.setattr(sys, "excepthook", None)
    install_error_hook()
    words, model = dictionary(), build_model().eval()
    generator = SequenceGenerator([model], words, beam_size=4, max_len_b=6, search_strategy=kind(words))
    constraints = given and pack_constraints([given] * 3)
    with pytest.raises((AssertionError, NotImplementedError, UserError)) as refused:
        generator.generate([model], {"net_input": batch(parsed=False)}, constraints=constraints)
    sys.excepthook(refused.type, refused.value, None)
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_targets_padded_on_the_left_are_read_as_others():
    """By --score-reference and --prefix-size."""
    words, model = dictionary(), build_model(seed=8).eval()
    sentences = [torch.tensor([*range(5, 5 + length), words.eos()]) for length in (6, 3, 5)]
    lengths = list(map(len, sentences))
    found = []
    for left in (False, True):
        task = TranslationTask(TranslationConfig(left_pad_target=left), words, words)
        pairs = LanguagePairDataset(sentences, lengths, words, sentences, lengths, words, left_pad_target=left)
        sample = pairs.collater([pairs[number] for number in range(3)])
        forced = {"prefix_tokens": sample["target"][:, :2]}
        scored = task.inference_step(SequenceScorer(words), [model], sample)
        prefixed = task.inference_step(SequenceGenerator([model], words, max_len_b=9), [model], sample, **forced)
        assert [one[0]["tokens"][:2].tolist() for one in prefixed] == [[5, 6]] * 3
        found.append([one[0]["score"].item() for one in (*scored, *prefixed)])
    assert found[0] == pytest.approx(found[1], abs=1e-5)


def test_an_empty_reference_forces_no_prefix():
    """As without --prefix-size."""
    words, model, inputs = dictionary(), build_model(seed=8).eval(), batch(parsed=False)
    task = TranslationTask(TranslationConfig(), words, words)
    generator = SequenceGenerator([model], words, max_len_b=9)
    forced = torch.tensor([[5, 6], [words.eos(), words.pad()], [7, words.eos()]])
    free, found = (
        [
            [one["tokens"].tolist() for one in sentence]
            for sentence in task.inference_step(generator, [model], {"net_input": dict(inputs)}, **prefix)
        ]
        for prefix in ({}, {"prefix_tokens": forced})
    )
    assert found[1] == free[1] and found[0][0][:2] == [5, 6] and found[2][0] == [7, words.eos()]


def test_fewer_translations_than_the_beam_are_aligned():
    """Each as in a batch of its own."""
    words, model, inputs = dictionary(), build_model(seed=8).eval(), batch(parsed=False)
    limits = {"beam_size": 4, "max_len_b": 20, "search_strategy": Constrained(words)}
    generator = SequenceGeneratorWithAlignment([model], words, **limits)
    constraints = pack_constraints([[torch.tensor([5, 6])], [], [torch.tensor([7])]])

    def translate(rows):
        sample = {"net_input": {key: value[rows] for key, value in inputs.items()}}
        found = generator.generate([model], sample, constraints=constraints[rows])
        return [[(one["tokens"].tolist(), one["alignment"]) for one in sentence] for sentence in found]

    together = translate(slice(None))
    assert [len(found) for found in together] == [1, 4, 2]
    assert together == [translate(slice(row, row + 1))[0] for row in range(3)]


@pytest.mark.parametrize(
    "flags", ["--lm-path lm.pt", "--prefix-size 2", "--score-reference", "--print-alignment soft"], ids=str
)
def test_flags_that_interactive_ignores_are_refused(flags):
    register()
    parser = options.get_interactive_generation_parser()
    args = options.parse_args_and_arch(parser, ["data", "--path", "model.pt", *flags.split()])
    with pytest.raises(UserError, match=f"^{flags.partition(' ')[0]}.*: not in fairseq-interactive"):
        interactive.main(convert_namespace_to_omegaconf(args))


@pytest.mark.parametrize("other", ["order", "size"])
def test_language_models_of_other_words_are_refused(other):
    words, model, theirs = dictionary(), build_model(), dictionary(31)
    if other == "order":
        theirs = dictionary()
        theirs.symbols[5:7] = theirs.symbols[6:4:-1]
    language_model = SimpleNamespace(decoder=SimpleNamespace(dictionary=theirs), eval=lambda: None)
    with pytest.raises(UserError, match=r"^--lm-path: .* in the data folder has other words than the target"):
        SequenceGeneratorWithAlignment([model], words, lm_model=language_model)
    language_model.decoder.dictionary = dictionary()
    SequenceGeneratorWithAlignment([model], words, lm_model=language_model)
