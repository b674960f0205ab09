"""``--graph-steps`` in translation: the steps of beam search as a chain of CUDA graphs for each shape of a batch.

Step t reads what step t - 1 left in its memory, so a mechanism keeps between steps whatever it keeps without graphs.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.sequence_generator import EnsembleModel
from torch import Tensor

from fairseq_diverse.host.graphs import FLAG, CudaGraphs, Padded, capture, kept_by, refused

logger = logging.getLogger(__name__)

SENTENCES, WORDS = 8, 16  # a batch is padded to a multiple of so many, a source sentence likewise
EAGER = 1  # batches of a shape that run as without graphs: most shapes of --max-tokens come once
CHAINS = 8  # shapes that are captured: each keeps its keys and values
REFUSED = ("checkpoint_activations", "quant_noise_scalar", "quantization_config_path")  # in evaluation, too


def generate(eager: Any, self: Any, *args: Any, **named: Any) -> Any:
    """As ``SequenceGenerator.generate``, with captured steps for models with --graph-steps."""
    if type(self.model) is EnsembleModel and all(getattr(x, "graph_steps", None) for x in self.model.models):
        models = [*self.model.models]
        reason = next(filter(None, (refused(model, model.graph_steps.args, REFUSED) for model in models)), "")
        if reason:
            logger.info(f"{FLAG}: not used in translation: {reason}")
        self.model = CapturedDecoding(models, None if reason else CudaGraphs())
    return eager(self, *args, **named)


@dataclass
class Chain:
    """The steps of batches of one shape: N rows, one a beam of a sentence, and S words of the source.

    Args:
        encoded: of each model, what its encoder made.
        words: (N, 1), the last word of each row.
        order: (N,), the row of the step before that each row continues.
        state: the incremental state of each model after the last captured step.
        steps: what replays each step.
        kept: what each step reads besides.
        outputs: log-probabilities (N, words of the dictionary) and, where models give them, attention weights (N, S).
    """

    encoded: list[dict[str, list[Tensor]]]
    words: Tensor
    order: Tensor
    state: Any
    steps: list[Callable[[], None]] = field(default_factory=list)
    kept: list[list[Tensor]] = field(default_factory=list)
    outputs: tuple[Tensor, Tensor | None] | None = None


class CapturedDecoding(EnsembleModel):
    """fairseq's ensemble of models, with replayed decoding steps; without ``graphs``, fairseq's.

    Beam search leaves a sentence out when it is finished. Here it keeps its rows, so that the shape stays: ``rows`` has
    the row of each beam that is left, and what a sentence keeps of its source never moves.

    Args:
        models: of the ensemble.
        graphs: what captures; they run one after another, so they share their memory.
    """

    def __init__(self, models: list[Any], graphs: Any) -> None:
        super().__init__(models)
        self.graphs, self.chains, self.seen = graphs, dict[Any, Chain](), dict[Any, int]()
        self.chain: Any = None  # of this batch, from its first step on; None if it is not captured
        self.weights: Any = ()  # where the parameters are in memory
        self.rows = torch.empty(0)
        self.beam = self.length = 0

    def forward_encoder(self, net_input: Any) -> Any:
        self.chain = None
        return super().forward_encoder(net_input)

    def reorder_encoder_out(self, encoder_outs: Any, new_order: Tensor) -> Any:
        if self.chain is not None:
            return encoder_outs
        self.beam = len(new_order) // encoder_outs[0]["encoder_out"][0].size(1)
        return super().reorder_encoder_out(encoder_outs, new_order)

    def reorder_incremental_state(self, incremental_states: Any, new_order: Tensor) -> None:
        if self.chain is None:
            return super().reorder_incremental_state(incremental_states, new_order)
        before = self.rows[new_order]
        beams = torch.arange(len(before), device=before.device) % self.beam
        self.rows = before - before % self.beam + beams
        self.chain.order[self.rows] = before

    def forward_decoder(
        self, tokens: Tensor, encoder_outs: Any, incremental_states: Any, temperature: float = 1.0
    ) -> Any:
        step, usable = tokens.size(1) - 1, self.graphs is not None and not torch.is_autocast_enabled("cuda")
        if step == 0 and usable:
            self.rows = torch.arange(len(tokens), device=tokens.device)
            self.chain = self._begin(encoder_outs, temperature)
        if (chain := self.chain) is None:
            return super().forward_decoder(tokens, encoder_outs, incremental_states, temperature)
        chain.words[self.rows] = tokens[:, -1:]
        if step == len(chain.steps):
            self._capture(chain, step, temperature)
        chain.steps[step]()
        lprobs, attention = chain.outputs
        return lprobs[self.rows], None if attention is None else attention[self.rows, : self.length]

    def _begin(self, encoder_outs: Any, temperature: float) -> Chain | None:
        """The chain of this batch, with what its encoder made; None if its shape is not captured."""
        if self.weights != (weights := [x.data_ptr() for x in self.parameters()]):
            self.weights, self.graphs.pool = weights, None
            self.chains.clear()
        padding = encoder_outs[0]["encoder_padding_mask"][0]
        (rows, self.length), group = padding.shape, SENTENCES * self.beam
        shape = -(-rows // group) * group, -(-self.length // WORDS) * WORDS
        key = (*shape, self.beam, temperature)
        self.seen[key] = self.seen.get(key, 0) + 1
        if key not in self.chains:
            if self.seen[key] <= EAGER or len(self.chains) == CHAINS:
                return None
            encoded = []
            for encoder_out in encoder_outs:
                x = encoder_out["encoder_out"][0]
                x = x.new_empty(shape[1], shape[0], x.size(2))
                encoded.append({"encoder_out": [x], "encoder_padding_mask": [padding.new_empty(shape)]})
            order = torch.arange(shape[0], device=padding.device)
            self.chains[key] = Chain(encoded, torch.zeros_like(order)[:, None], order, [{} for _ in encoder_outs])
        chain = self.chains[key]
        for static, encoder_out in zip(chain.encoded, encoder_outs, strict=True):
            x, mask = static["encoder_out"][0].zero_(), static["encoder_padding_mask"][0].zero_()
            x[: self.length, :rows] = encoder_out["encoder_out"][0]
            mask[:rows] = True  # of the other rows False: each sees something
            mask[:rows, : self.length] = encoder_out["encoder_padding_mask"][0]
        return chain

    def _capture(self, chain: Chain, step: int, temperature: float) -> None:
        def run(before: Any = chain.state) -> Any:
            state = [{key: dict(kept) for key, kept in states.items()} for states in before]
            if step:
                EnsembleModel.reorder_incremental_state(self, state, chain.order)
            tokens = chain.words.expand(-1, step + 1)  # a step reads their number and the last one
            outputs = EnsembleModel.forward_decoder(self, tokens, chain.encoded, state, temperature)
            chain.outputs = chain.outputs or outputs
            for old, new in zip(chain.outputs, outputs, strict=True):
                if new is not None:
                    old.copy_(new)
            return state

        with Padded():
            self.graphs.eagerly(run)
        replay, chain.state = capture(self.graphs, run, "add --model-overrides \"{'graph_steps': False}\"")
        chain.steps.append(replay)
        chain.kept.append(kept_by(self))
