"""--graph-steps: replayed steps give the losses and gradients of eager ones, and wait for nothing.

Without a GPU, CUDA graphs are replaced by functions that run again on the captured tensors.
"""

import copy
from argparse import Namespace
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from fairseq.nan_detector import NanDetector
from fairseq.optim.adam import Adam
from fairseq.tasks.fairseq_task import FairseqTask
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from benchmarks import gpu_counting
from benchmarks.fake_cuda import fake_cuda, move
from benchmarks.sides import build_criterion
from fairseq_diverse.host import graphs
from fairseq_diverse.host.graphs_decoding import REFUSED
from fairseq_diverse.support.errors import UserError
from tests.cases import CASES, batch, build_model, terms
from tests.refusals import refused

SHAPES = ((4, 3), (3, 5)), ((2, 2, 4), (5, 1, 3))  # lengths of a batch's sentences


class Again:
    """In place of CUDA graphs: replaying runs the function again and fills what it returned first."""

    def __init__(self, model):
        self.model, self.captured = model, 0

    def eagerly(self, run):
        return run()

    def capture(self, run):
        self.captured += 1
        state = torch.random.get_rng_state()
        grads = [(p.grad, p.grad.clone()) for p in self.model.parameters()]
        made = run()
        torch.random.set_rng_state(state)  # capturing computes nothing
        for grad, before in grads:
            grad.copy_(before)

        def replay():
            with graphs.Padded():  # as captured
                again = run()
            for old, new in zip(tree_leaves(made), tree_leaves(again), strict=True):
                if isinstance(old, torch.Tensor) and old is not new:
                    old.data.copy_(new)

        return replay, made


class Optimizer:
    """What a task calls of fairseq's optimizers, with the loss scale of float16 or without."""

    def __init__(self, model, scale):
        self.inner = Adam(model.parameters(), lr=1e-2)
        if scale is not None:
            self.scaler = SimpleNamespace(loss_scale=scale)

    def backward(self, loss):
        (loss * (self.scaler.loss_scale if hasattr(self, "scaler") else 1)).backward()


def sample_of(seed, lengths):
    inputs = batch(*lengths, seed=seed)
    target = inputs["prev_output_tokens"]
    return {"net_input": inputs, "target": target, "ntokens": int((target != 1).sum()), "nsentences": len(target)}


def trained(flags, captured, scale=None, pieces=1, device="cpu"):
    """Losses, sample sizes and logs of updates with batches of two shapes, and the last parameters."""
    torch.manual_seed(0)
    model = build_model({**flags, "dropout": 0.1, "attention_dropout": 0.1}).to(device)
    criterion = build_criterion(terms(flags) and ",".join(terms(flags)), model.encoder.dictionary)
    optimizer, seen = Optimizer(model, scale), []
    steps = model.graph_steps = graphs.GraphSteps(Namespace(), captured(model)) if captured else None
    for update in range(12):
        torch.manual_seed(update)
        optimizer.inner.zero_grad()
        if scale is not None:
            optimizer.scaler.loss_scale = scale * (1 + update % 2)
        for piece in range(pieces):
            sample = sample_of(update, SHAPES[(update + piece) % 3 == 0])
            sample = tree_map(lambda x: x.to(device) if isinstance(x, torch.Tensor) else x, sample)
            made = FairseqTask.train_step(None, sample, model, criterion, optimizer, update)
            seen.append([float(x) for x in tree_leaves(made)])
        optimizer.inner.step()
    return seen, [parameter.detach() for parameter in model.parameters()], steps


@pytest.mark.parametrize(
    ("flags", "scale", "pieces"),
    [({}, None, 1), ({}, 128.0, 2), ({"evolving_on": "encoder", "routing": "em", "routing_on": "decoder"}, None, 3)],
)
def test_replayed_steps_train_as_eager_ones_do(flags, scale, pieces):
    expected, parameters, _ = trained(flags, None, scale, pieces)
    got, others, steps = trained(flags, Again, scale, pieces)
    assert got == expected
    assert all(one.equal(other) for one, other in zip(parameters, others, strict=True))
    assert steps.graphs.captured == 2  # shapes


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "flags"), [("off", {}), *(case for case in CASES if "syntax" not in str(case))])
def test_a_gpu_replays_what_it_would_compute(name, flags):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    expected, _, _ = trained(flags, None, 128.0, 2, "cuda")
    got, _, steps = trained(flags, lambda model: graphs.CudaGraphs(), 128.0, 2, "cuda")
    assert len(steps.steps) == 2
    figures, wanted = (torch.tensor([x for made in rows for x in made]) for rows in (got, expected))
    torch.testing.assert_close(figures, wanted, rtol=1e-3, atol=1e-4)


OTHERS = [case for case in CASES if not case[0].endswith("decoder") and "syntax" not in str(case)]


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("off", {}),
        *(case for case in CASES if case[0].endswith("decoder")),
        *(pytest.param(*case, marks=[pytest.mark.slow] * (case[0] != "localness-1-encoder")) for case in OTHERS),
    ],
)
def test_a_captured_step_does_not_wait_for_the_gpu(name, flags):
    """Of every model but those with trees, which are not captured; layers of all are in ``test_gpu_model``."""
    model = build_model({**flags, "encoder_layers": 1, "decoder_layers": 2, "dropout": 0.1, "attention_dropout": 0.1})
    sample = sample_of(0, SHAPES[0])
    criterion = build_criterion(",".join(terms(flags)), model.encoder.dictionary)
    with fake_cuda(), gpu_counting.Counting() as mode, graphs.Padded():
        move(model, torch.float16)
        model.decoder._future_mask = torch.empty(8, 8, dtype=torch.float16, device="cuda")
        loss = criterion(model, gpu_counting._fake(sample) | {"ntokens": torch.empty((), device="cuda")})[0]
        loss.backward()
    assert mode.count.syncs == []


def test_steps_that_cannot_be_captured_run_eagerly_and_say_why(caplog):
    model = build_model({})
    args = Namespace(criterion="masked_lm")
    assert "not on an NVIDIA GPU" in graphs.why_not(model, args)
    model.graph_steps = graphs.GraphSteps(args)
    criterion = build_criterion("", model.encoder.dictionary)
    with caplog.at_level("INFO"):
        for update in range(5):
            sample = sample_of(update, ((4, 3), (3, 5)))
            FairseqTask.train_step(None, sample, model, criterion, Optimizer(model, None), update)
    said = ["--graph-steps: not used: the model is on cpu, not on an NVIDIA GPU"]
    assert [record.message for record in caplog.records if graphs.FLAG in record.message] == said
    with fake_cuda():
        move(model, torch.float16)
        scalar = Namespace(quant_noise_scalar=0.1, encoder_layerdrop=0.1)
        assert graphs.refused(model, scalar, REFUSED) == "--quant-noise-scalar: weights are drawn in Python"
        for settings, said in (
            (args, "--criterion masked_lm may wait"),
            (Namespace(criterion="cross_entropy", decoder_layerdrop=0.1), "--decoder-layerdrop: layers are drawn"),
            (Namespace(criterion="cross_entropy"), ""),
        ):
            why = graphs.why_not(model, settings)
            assert why.startswith(said) and bool(why) == bool(said)


def test_a_step_that_waits_is_one_line():
    class Waiting(Again):
        def capture(self, run):
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")

    model = build_model({})
    model.graph_steps = graphs.GraphSteps(Namespace(), Waiting(model))
    criterion = build_criterion("", model.encoder.dictionary)
    with pytest.raises(UserError, match=r"--graph-steps: this model cannot be captured \(CUDA error.*capturing\);"):
        for update in range(4):
            sample = sample_of(1, ((4, 3), (3, 5)))
            FairseqTask.train_step(None, sample, model, criterion, Optimizer(model, None), update)


class Small(Again):
    """No memory is left for the second graph."""

    def capture(self, run):
        if self.captured == 1:
            raise torch.OutOfMemoryError
        return super().capture(run)


def test_shapes_for_which_memory_does_not_suffice_are_not_captured(caplog):
    expected, parameters, _ = trained({}, None)
    with caplog.at_level("INFO"):
        got, others, steps = trained({}, Small)
    assert got == expected and all(one.equal(other) for one, other in zip(parameters, others, strict=True))
    assert len(steps.steps) == 1 and "memory suffices for 1 shapes" in caplog.text


class Watching(Again):
    """Capturing also records what is read but not made: the storage of each tensor, by the operator that reads it."""

    def __init__(self, model):
        super().__init__(model)
        self.read = {}

    def capture(self, run):
        replay, made = super().capture(run)
        with Reads() as reads:
            run()
        self.read |= reads.read
        return replay, made


class Reads(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.read, self.made = {}, set()

    def __torch_dispatch__(self, operator, types, args=(), named=None):
        for x in tree_leaves((args, named)):
            if isinstance(x, torch.Tensor) and (key := x.untyped_storage()._cdata) not in self.made:
                self.read[key] = StorageWeakRef(x.untyped_storage()), str(operator)
        made = operator(*args, **(named or {}))
        self.made |= {x.untyped_storage()._cdata for x in tree_leaves(made) if isinstance(x, torch.Tensor)} - {
            *self.read
        }
        return made


@pytest.mark.parametrize(("name", "flags"), [("off", {}), *(pytest.param(*x, marks=pytest.mark.slow) for x in OTHERS)])
def test_what_a_captured_step_reads_outlives_longer_batches(name, flags):
    model = build_model({**flags, "dropout": 0.1, "max_source_positions": 8, "max_target_positions": 8})
    criterion = build_criterion(terms(flags) and ",".join(terms(flags)), model.encoder.dictionary)
    optimizer, watching = Optimizer(model, None), Watching(model)
    model.graph_steps = graphs.GraphSteps(Namespace(), watching)
    for update, lengths in enumerate([SHAPES[0]] * 5 + [((12, 9), (11, 14))] * 2):
        FairseqTask.train_step(None, sample_of(update, lengths), model, criterion, optimizer, update)
        optimizer.inner.zero_grad()
    assert watching.captured == 1 and not [operator for ref, operator in watching.read.values() if ref.expired()]


def test_a_step_under_hooks_is_not_captured():
    """fairseq runs a step again to find a number that is not finite."""
    model = build_model({})
    model.graph_steps = graphs.GraphSteps(Namespace(), Again(model))
    criterion = build_criterion("", model.encoder.dictionary)
    for update in range(5):
        with NanDetector(model, backward=False) if update == 3 else nullcontext():
            FairseqTask.train_step(None, sample_of(1, SHAPES[0]), model, criterion, Optimizer(model, None), update)
        assert model.graph_steps.graphs.captured == (update == 4)
    copied = copy.deepcopy(model)  # as --store-ema does
    assert copied.graph_steps.steps == {} and copied.graph_steps.args is model.graph_steps.args


@pytest.mark.parametrize("other", [{"compile_layers": True}, {"ddp_backend": "fully_sharded"}])
def test_flags_that_do_not_go_with_it_are_refused(other):
    refused("--graph-steps: does not work with", build_model, {"graph_steps": True, **other})
