"""What fairseq does wrong is corrected; damaged files and flags that it ignores are one line."""

import itertools
import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq import options, utils
from fairseq.data import Dictionary, LanguagePairDataset, data_utils
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder
from fairseq.logging import metrics
from fairseq.ngram_repeat_block import NGramRepeatBlock
from fairseq.optim import AMPOptimizer
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks import FairseqTask
from omegaconf import OmegaConf

import fairseq_diverse
from fairseq_diverse import register
from fairseq_diverse.host.batches import least_padding
from fairseq_diverse.host.messages import in_one_line
from fairseq_diverse.host.training import load_training
from fairseq_diverse.support.errors import UserError
from fairseq_diverse.testing.models import batch, build_model, dictionary
from tests.refusals import refused

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


@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_ngram_is_repeated_after_a_prefix(size):
    words, model = dictionary(), build_model(seed=8).eval()
    limits = {"min_len": 15, "max_len_b": 20, "no_repeat_ngram_size": size}
    generator = SequenceGenerator([model], words, beam_size=4, **limits)
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
        blocked = NGramRepeatBlock(size)._no_repeat_ngram(tokens, torch.zeros(6, 10), 6, 1, step).isinf()
        for row in range(6):
            written = tokens[row, 1 : step + 1].tolist()
            ngrams = {tuple(written[at : at + size]) for at in range(step - size + 1)}
            assert blocked[row].tolist() == [(*written[step + 1 - size :], word) in ngrams for word in range(10)]


def test_a_task_begins_its_validation_before_its_metrics_are_asked_for():
    begun = []
    cfg = {
        "dataset": {"disable_validation": False, "valid_subset": "valid"},
        "checkpoint": {"restore_file": "checkpoint_last.pt", "save_dir": "", "best_checkpoint_metric": "accuracy"},
    }
    trainer = SimpleNamespace(cfg=OmegaConf.create(cfg), begin_valid_epoch=begun.append)
    trainer.get_valid_iterator = lambda _: SimpleNamespace(first_batch={})
    trainer.valid_step = lambda _: metrics.log_scalar("accuracy" if begun else "loss", 1)
    load_training(lambda *_: None, trainer, "absent.pt")


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a 2\nb 1\na 2\n", "damaged, or of another kind .Duplicate word found when loading Dictionary: 'a'"),
        (POINTER, "a pointer of Git LFS, not the file: run git lfs pull"),
        ("a\nb\n", "damaged, or of another kind .Incorrect dictionary format"),
    ],
)
def test_a_dictionary_that_is_damaged_is_named(text, reason, tmp_path):
    (tmp_path / "dict.en.txt").write_text(text)
    refused(rf"^{tmp_path}/dict\.en\.txt: {reason}", Dictionary.load, str(tmp_path / "dict.en.txt"))


@pytest.fixture
def data(tmp_path) -> str:
    """The prefix of six sentences of 30 words."""
    builder = MMapIndexedDatasetBuilder(f"{tmp_path}/train.bin", dtype=np.uint16)
    for length in range(3, 9):
        builder.add_item(torch.tensor([*range(34 - length, 34), 2]))
    builder.finalize(f"{tmp_path}/train.idx")
    return f"{tmp_path}/train"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({".bin": lambda old: old[:20]}, r"\.bin: has 10 words, but its \.idx says 39: cut off, or of other data"),
        ({".idx": lambda old: old[:40]}, r"\.idx: cut off"),
        ({".bin": lambda old: b""}, r"\.bin: empty file"),
        ({".idx": lambda old: b""}, r"\.idx: damaged, or of another kind \("),
        ({".bin": lambda old: POINTER.encode()}, r"\.bin: a pointer of Git LFS"),
        ({".idx": lambda old: POINTER.encode()}, r"\.idx: a pointer of Git LFS"),
    ],
)
def test_text_that_is_damaged_is_named(change, message, data):
    assert len(data_utils.load_indexed_dataset(data, dictionary())) == 6
    for suffix, new in change.items():
        Path(data + suffix).write_bytes(new(Path(data + suffix).read_bytes()))
    refused(rf"^{data}{message}", data_utils.load_indexed_dataset, data, dictionary())


@pytest.mark.parametrize("words", [10, 29])
def test_a_dictionary_with_fewer_words_than_the_text_uses_is_refused(words, data):
    message = rf"^{data}\.bin: has the word number 33, but its dictionary .* only {words + 4} words"
    refused(message, data_utils.load_indexed_dataset, data, dictionary(words))


@pytest.mark.parametrize("count", [1, 2, 3, 20])
def test_lengths_are_rounded_with_the_least_padding(count):
    lengths = np.random.default_rng(count).integers(1, 12, 40)
    values = np.unique(lengths)

    def added(ends):
        return sum(min(end for end in ends if end >= length) - length for length in lengths)

    chosen = least_padding(lengths, count)
    others = itertools.combinations(values[:-1], min(count, len(values)) - 1)
    assert len(chosen) <= count and added(chosen) == min(added([*ends, values[-1]]) for ends in others)


def test_batches_in_buckets_have_few_shapes():
    """Each sentence is in one batch, with the words that it has without buckets."""
    words, random = dictionary(), torch.Generator().manual_seed(1)
    sides = [
        [torch.cat([torch.randint(4, 34, (int(n),), generator=random), torch.tensor([2])]) for n in numbers]
        for numbers in torch.randint(1, 30, (2, 200), generator=random)
    ]
    given = [x for side in sides for x in (side, np.array([len(words) for words in side]), words)]
    usual, bucketed = LanguagePairDataset(*given), LanguagePairDataset(*given, num_buckets=3)
    fits = [n for n in range(200) if len(sides[0][n]) <= 25 and len(sides[1][n]) <= 25]
    chosen = FairseqTask.filter_indices_by_size(None, bucketed.ordered_indices(), bucketed, (25, 25), True)
    found = bucketed.batch_by_size(chosen, max_tokens=200)
    assert sorted(np.concatenate(found)) == fits
    shapes = set()
    for indices in found:
        batch, other = (data.collater([data[int(at)] for at in indices]) for data in (bucketed, usual))
        inputs, expected = batch["net_input"], other["net_input"]
        assert inputs["src_tokens"].shape == inputs["prev_output_tokens"].shape == batch["target"].shape
        shapes.add(batch["target"].shape[1])
        assert batch["ntokens"] == other["ntokens"] and inputs["src_lengths"].equal(expected["src_lengths"])
        sides = [(inputs[key], expected[key]) for key in ("src_tokens", "prev_output_tokens")]
        for one, its in [(batch["target"], other["target"]), *sides]:
            assert [row[row != 1].tolist() for row in one] == [row[row != 1].tolist() for row in its]
    assert len(shapes) == 3 and max(shapes) <= 25  # sentences that are left out do not count


def pairs(sources: int, targets: int) -> LanguagePairDataset:
    sides = ([torch.tensor([5, 6, 2])] * number for number in (sources, targets))
    given = (part for side in sides for part in (side, [3] * len(side), dictionary()))
    return LanguagePairDataset(*given)


def test_sides_of_unequal_length_are_refused():
    refused(r"^16 source and 12 target sentences: prepare both", pairs, 16, 12)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2 3\na 1 2 3\nb 4 5 6\n", "vectors of 3 numbers, but the model's embeddings have 2"),
        ("2 2\na 1 2\nb 4\n", "line 3: a word and 2 numbers are needed"),
        ("2 2\na 1 2\nb 4 x\n", "line 3: a word and 2 numbers are needed"),
        ("", "has no vectors"),
        ("2 2\n", "has no vectors"),
        (POINTER, "a pointer of Git LFS"),
    ],
)
def test_embeddings_that_do_not_fit_are_named(text, message, tmp_path):
    (tmp_path / "x.vec").write_text(text)
    with pytest.raises(UserError, match=rf"^{tmp_path}/x\.vec: {message}"):
        utils.load_embedding(utils.parse_embedding(str(tmp_path / "x.vec")), dictionary(), torch.nn.Embedding(34, 2))


@pytest.mark.parametrize("header", ["3 2\n", ""])
def test_embeddings_of_words_with_spaces_and_without_a_header(header, tmp_path):
    (tmp_path / "x.vec").write_text(f"{header}w1 1 2 \n. . . 3 4\nw3 5 6\n")
    vectors = utils.parse_embedding(str(tmp_path / "x.vec"))
    assert {word: vector.tolist() for word, vector in vectors.items()} == {"w1": [1, 2], ". . .": [3, 4], "w3": [5, 6]}
    put = utils.load_embedding(vectors, (words := dictionary()), torch.nn.Embedding(34, 2)).weight
    assert put[words.index("w3")].tolist() == [5, 6]


def parsed(program: str, *words: str) -> Namespace:
    return options.parse_args_and_arch(getattr(options, f"get_{program}_parser")(), input_args=["data", *words])


@pytest.mark.parametrize(
    ("program", "words", "message"),
    [
        ("interactive_generation", "--path x --lm-path y", "--lm-path y: fairseq-interactive ignores it; leave it"),
        ("interactive_generation", "--path x --prefix-size 2", "--prefix-size 2: fairseq-interactive ignores it"),
        ("interactive_generation", "--path x --score-reference", "--score-reference: fairseq-interactive ignores it"),
        ("interactive_generation", "--path x --print-alignment soft", "--print-alignment soft: fairseq-interactive"),
        ("interactive_generation", "--path x --num-shards 2", "--num-shards 2: fairseq-interactive ignores it"),
        ("generation", "--path x --no-early-stop", "--no-early-stop: fairseq-generate ignores it; leave it out$"),
        ("generation", "--path x --print-step", "--print-step: fairseq-generate ignores it; leave it out$"),
        ("generation", "--path x --num-shards 2 --shard-id 2", "--shard-id 2: from 0 to --num-shards 2 - 1"),
        ("eval_lm", "--path x --results-path y", "--results-path y: fairseq-eval-lm ignores it"),
        ("validation", "--path x --task translation --max-valid-steps 3", "--max-valid-steps 3: fairseq-validate"),
        ("training", "--arch transformer --optimizer adam --num-shards 2", "--num-shards 2: fairseq-train ignores it"),
        ("training", "--arch transformer --optimizer adam --char-inputs", "--char-inputs: fairseq-train ignores it"),
    ],
)
def test_flags_that_a_program_ignores_are_refused(program, words, message):
    refused(f"^{message}", parsed, program, *words.split())


def test_a_task_may_have_a_flag_of_another_program():
    parser = options.get_training_parser()
    parser.add_argument("--beam", type=int, default=5, help="of a task that translates in validation")
    words = ["data", "--arch", "transformer", "--optimizer", "adam", "--bf16"]
    assert options.parse_args_and_arch(parser, words).bf16


def test_bfloat16_needs_no_tpu():
    assert not parsed("training", "--arch", "transformer", "--optimizer", "adam", "--bf16").tpu


@pytest.mark.parametrize(("flag", "value"), [("--eval-bleu-args", "{beam:5}"), ("--eval-bleu-detok-args", "5")])
def test_a_flag_in_json_is_named(flag, value):
    """And no other JSON that cannot be read, such as a file of a tokenizer, is said to be of this flag."""
    with pytest.raises(UserError, match=rf"^{flag} {value}: no JSON \("):
        parsed("training", "--arch", "transformer", "--optimizer", "adam", flag, value)
    assert in_one_line(json.JSONDecodeError, json.JSONDecodeError("Expecting value", "<html>", 0)) is None


def test_generate_translates_its_share_of_the_shards():
    chosen = []
    for flags in ("", "--num-shards 2", "--num-shards 2 --shard-id 1"):
        parsed("generation", "--path", "x", *flags.split())
        batches = FairseqTask(Namespace()).get_batch_iterator(pairs(7, 7), max_sentences=2, num_shards=1)
        shown = batches.next_epoch_itr(shuffle=False)
        chosen.append([number for batch in shown if batch for number in batch["id"].tolist()])
    assert sorted(chosen[0]) == sorted(chosen[1] + chosen[2]) == [*range(7)] and len(chosen[1]) == 4
    parsed("generation", "--path", "x")


def test_batches_of_a_task_that_gives_all_arguments_by_place():
    task = FairseqTask(Namespace())
    assert task.get_batch_iterator(pairs(7, 7), None, 2, None, False, 1, 1, 1, 0, 0, 3).next_epoch_idx == 3


@pytest.mark.parametrize(("split", "flag"), [("train", "--max-tokens"), ("valid", "--max-tokens-valid")])
def test_too_few_tokens_for_a_sentence_name_their_flag(split, flag):
    task = FairseqTask(Namespace())
    task.datasets[split] = pairs(3, 3)
    refused(f"^{flag} 2: less than the longest sentence", task.get_batch_iterator, task.datasets[split], max_tokens=2)


@pytest.mark.parametrize(
    ("arch", "instead"),
    [("transformer_iwslt_de_en", "diverse_transformer_iwslt_de_en"), ("fconv", "diverse_transformer")],
)
def test_a_flag_of_a_mechanism_names_the_architecture_that_takes_it(arch, instead, capsys):
    words = ["--arch", arch, "--optimizer", "adam", "--evolving-on", "encoder"]
    refused(rf"^--evolving-on: --arch {arch} of fairseq has no mechanisms; use {instead}", parsed, "training", *words)
    assert not capsys.readouterr().err
    refused("^--gated-feed-forward: --arch ", parsed, "training", *words[:4], "--gated-feed-forward")
    refused(r"^--arch: give one, such as", parsed, "training", "--optimizer", "adam")
    refused(r"^--task: give one, such as --task translation", parsed, "validation", "--path", "x")


def test_the_plugins_folder_keeps_its_name(tmp_path):
    (tmp_path / "attention_plugin").symlink_to(Path(fairseq_diverse.__file__).parent)
    command = [sys.executable, "-c", "import attention_plugin"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"error: --user-dir {tmp_path}/attention_plugin: the folder of fairseq_diverse by a")
