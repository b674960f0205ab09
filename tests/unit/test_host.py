"""What fairseq does wrong without an error is corrected."""

import itertools

import pytest
import torch
from fairseq.ngram_repeat_block import NGramRepeatBlock
from fairseq.optim import AMPOptimizer
from fairseq.sequence_generator import SequenceGenerator
from omegaconf import OmegaConf

from fairseq_diverse import register
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
