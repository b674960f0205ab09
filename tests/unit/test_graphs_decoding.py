"""--graph-steps in translation: replayed steps find the hypotheses of eager ones, and wait for nothing.

Without a GPU, CUDA graphs are replaced by tapes of torch's operators with the tensors on which they ran.
"""

import pytest
import torch
from fairseq.modules import SinusoidalPositionalEmbedding
from fairseq.sequence_generator import SequenceGenerator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks import gpu_counting
from benchmarks.fake_cuda import fake_cuda, move
from fairseq_diverse.host import graphs, graphs_decoding
from fairseq_diverse.host.graphs_decoding import CapturedDecoding
from fairseq_diverse.support.errors import UserError
from tests.cases import ALL_ON, CASES, batch, build_model, first_of_each

BATCHES = ((4, 3), (9, 17, 1), (5, 5, 4), (2,), (17, 9), (4, 3))  # lengths of sentences, of two shapes in turn
T5 = [("t5", {"arch": "diverse_t5"}), ("t5-evolving", {"arch": "wang2021_evolving_t5"})]
DECODING = first_of_each([case for case in CASES if case[0].rpartition("-")[2] != "encoder"])


class Tape(TorchDispatchMode):
    """In place of CUDA graphs: replaying runs the same operators on the same tensors."""

    captured = 0

    def eagerly(self, run):
        return run()

    def capture(self, run):
        self.captured += 1
        self.ran = ran = []
        with self:
            made = run()

        def replay():
            for operator, args, named, before in ran:
                for old, new in zip(tree_leaves(before), tree_leaves(operator(*args, **named)), strict=True):
                    if isinstance(old, torch.Tensor) and old is not new and old.data_ptr() != new.data_ptr():
                        old.copy_(new)

        return replay, made

    def __torch_dispatch__(self, operator, types, args=(), named=None):
        made = operator(*args, **(named or {}))
        self.ran.append((operator, args, named or {}, made))
        return made


def hypotheses(models, captured=None, prefix=(), **search):
    """Of every batch, the words, the scores and the attention weights of all beams."""
    search = {"max_len_a": 1, "max_len_b": 3, "temperature": 0.3} | search
    generator, made = SequenceGenerator(models, models[0].decoder.dictionary, beam_size=4, **search), []
    device = next(models[0].parameters()).device
    if captured:
        generator.model = CapturedDecoding(models, captured)
    for seed, lengths in enumerate(BATCHES):
        given = torch.tensor([prefix] * len(lengths)) if prefix else None
        inputs = {name: x.to(device) for name, x in batch(lengths, lengths, seed=seed).items()}
        made += [x for beams in generator.generate(models, {"net_input": inputs}, prefix_tokens=given) for x in beams]
    return made


def assert_the_same(models, **search):
    expected, tape = hypotheses(models, **search), Tape()
    made = hypotheses(models, tape, **search)
    assert len({len(x["tokens"]) for x in made}) > 3  # sentences end at several steps
    for one, other in zip(made, expected, strict=True):
        assert one["tokens"].equal(other["tokens"])
        torch.testing.assert_close(one["positional_scores"], other["positional_scores"], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(one["attention"], other["attention"], rtol=1e-5, atol=1e-5)
    assert tape.captured > 12  # steps of both shapes, until all sentences are finished


@pytest.mark.parametrize(("name", "flags"), [("off", {}), ALL_ON, *T5, *DECODING])
def test_replayed_steps_translate_as_eager_ones_do(name, flags):
    assert_the_same([build_model(flags, seed=3).double().eval()])


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "flags"), [("off", {}), *T5, *DECODING])
def test_a_gpu_replays_what_it_would_compute(name, flags):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    models = [build_model(flags, seed=3).double().eval().cuda()]
    for one, other in zip(hypotheses(models, graphs.CudaGraphs()), hypotheses(models), strict=True):
        assert one["tokens"].equal(other["tokens"])
        torch.testing.assert_close(one["positional_scores"], other["positional_scores"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("captured", [True, False])
def test_the_flag_of_training_is_used_in_translation_on_a_gpu(captured, caplog):
    model = build_model({"graph_steps": captured}).eval()
    generator = SequenceGenerator([model], model.decoder.dictionary)
    with caplog.at_level("INFO"):
        for _ in range(2):
            generator.generate([model], {"net_input": batch(parsed=False)})
    assert (type(generator.model) is CapturedDecoding) == captured
    said = "--graph-steps: not used in translation: the model is on cpu, not on an NVIDIA GPU"
    assert [record.message for record in caplog.records] == [said] * captured


def test_a_step_that_waits_is_one_line():
    class Waiting(Tape):
        def capture(self, run):
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")

    model = build_model().eval()
    with pytest.raises(UserError, match=r"cannot be captured \(CUDA error.*capturing\); add --model-overrides"):
        hypotheses([model], Waiting())


def test_only_questions_for_padding_are_answered():
    words = torch.tensor([[4, 5]])
    with graphs.Padded():
        assert words.eq(1).any()
        assert not words.gt(5).any() and not (words.float().eq(1)).any() and not words.eq(1).all()


def test_positions_are_not_made_again_in_a_captured_step(monkeypatch):
    """A question about a tensor of the host has its own answer."""
    model = build_model().double().eval()
    monkeypatch.setattr(SinusoidalPositionalEmbedding, "get_embedding", None)
    assert hypotheses([model], Tape())


def test_another_memory_and_another_shape(monkeypatch):
    """Converted parameters are elsewhere; more shapes than are kept run as without graphs."""
    monkeypatch.setattr(graphs_decoding, "CHAINS", 2)
    model = build_model(seed=3).double().eval()
    usual, captured = (SequenceGenerator([model], model.decoder.dictionary) for _ in range(2))
    captured.model = decoding = CapturedDecoding([model], Tape())
    for dtype in (torch.float64, torch.float32):
        model.to(dtype)
        for length in (3, 17, 33) * 2:
            given = [model], {"net_input": batch((length,), (length,))}
            made, expected = captured.generate(*given), usual.generate(*given)
            assert all(one["tokens"].equal(other["tokens"]) for one, other in zip(made[0], expected[0], strict=True))
        assert [chain.encoded[0]["encoder_out"][0].dtype for chain in decoding.chains.values()] == [dtype] * 2


def test_ensembles_and_prefixes():
    models = [build_model(flags, seed=3).double().eval() for flags in ({}, {"evolving_on": "decoder,cross"})]
    assert_the_same(models, prefix=[7, 7])


class Once(Tape):
    """Capturing runs the function, replaying does nothing: fake tensors have no values."""

    def capture(self, run):
        return lambda: None, run()


@pytest.mark.parametrize(("name", "flags"), [("off", {}), *T5, *DECODING])
def test_a_step_does_not_wait_for_the_gpu(name, flags, monkeypatch):
    monkeypatch.setattr(graphs_decoding, "EAGER", 0)
    model = build_model(flags).eval()
    inputs = batch((4, 3), (4, 3))
    words, order = torch.full((8, 3), 4), torch.arange(2).repeat_interleave(4)
    with fake_cuda(), torch.no_grad():
        move(model, torch.float16)
        words, order, tokens, lengths = map(
            gpu_counting._fake, (words, order, inputs["src_tokens"], inputs["src_lengths"])
        )
        decoding = CapturedDecoding([model], Once())
        with graphs.Padded():
            encoded = decoding.forward_encoder({"src_tokens": tokens, "src_lengths": lengths})
        encoded = decoding.reorder_encoder_out(encoded, order)
        with gpu_counting.Counting() as mode:
            for step in range(3):
                if step:
                    decoding.reorder_incremental_state([], words[:, 0])
                lprobs, _ = decoding.forward_decoder(words[:, : step + 1], encoded, [])
    assert len(lprobs) == 8 and mode.count.syncs == []
