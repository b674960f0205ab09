"""No output depends on later tokens, on padding, or on whether it is computed step by step."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn.functional import pad as pad_tokens

from fairseq_diverse.attention.relations import PADDING
from fairseq_diverse.testing.models import OF_ROBERTA, Flags, batch, dictionary
from fairseq_diverse.testing.properties.common import LONGER, SIDES, require, require_close, trained_model


def causality(flags: Flags, training: bool = False) -> None:
    """No output at target position t depends on a target token after t."""
    model = trained_model(flags).train(training)

    def outputs(sample: dict[str, Tensor]) -> Tensor:
        torch.manual_seed(1)  # the same draws
        return model(**sample)[0]

    with torch.no_grad():
        for length, positions in ((6, range(1, 7)), (LONGER, range(11, LONGER, 12))):
            sample = batch(target=(length,) * 3)
            before = outputs(sample)
            for position in positions:
                changed = {**sample, "prev_output_tokens": sample["prev_output_tokens"].clone()}
                changed["prev_output_tokens"][:, position:] = 4 + (changed["prev_output_tokens"][:, position:] + 7) % 26
                after = outputs(changed)
                require_close(after[:, :position], before[:, :position], f"outputs before position {position}", 1e-6)
                require(not torch.allclose(after[:, position:], before[:, position:]), "later outputs do not change")


def padding(flags: Flags, sides: Iterable[tuple[str, str]] = SIDES) -> None:
    """A sentence has the same outputs alone and in a padded batch."""
    model = trained_model(flags)
    has_losses = bool(model(**batch())[1]["losses"])  # some may be of training only
    model.eval()
    pad = dictionary().pad()
    for padded_on in sides:
        sample = batch(sides=padded_on)
        with torch.no_grad():
            together, _ = model(**sample)
            for row in range(3):
                src, tgt = sample["src_tokens"][row], sample["prev_output_tokens"][row]
                trees = sample["source_trees"][row][src != pad][None]
                real = (src if flags.get("arch") in OF_ROBERTA else tgt) != pad
                src, tgt = src[src != pad][None], tgt[tgt != pad][None]
                lengths = torch.tensor([src.size(1)])
                one = {"src_tokens": src, "prev_output_tokens": tgt, "source_trees": trees, "src_lengths": lengths}
                alone, _ = model(**one)
                where = " and ".join(padded_on)
                require_close(together[row, real], alone[0], f"a sentence alone, compared with a batch padded {where}")
                if has_losses:  # of a batch they may be sums or means: of this sentence, with and without padding
                    at_source, at_target = ((3, 0) if side == "left" else (0, 3) for side in padded_on)
                    padded = {
                        "src_tokens": pad_tokens(src, at_source, value=pad),
                        "prev_output_tokens": pad_tokens(tgt, at_target, value=pad),
                        "source_trees": pad_tokens(trees, (0, 0, *at_source), value=PADDING[0]),
                        "src_lengths": lengths,
                    }
                    for training in (True, False):
                        model.train(training)
                        first, again, others = (model(**given)[1]["losses"] for given in (one, one, padded))
                        for name, loss in first.items():
                            if torch.equal(loss, again[name]):  # else it is random
                                require_close(others[name], loss, f"loss {name} of a sentence padded {where}")


def step_by_step(flags: Flags, beam: int = 5, side: str = "left", steps: int = 6) -> None:
    """Incremental decoding with randomly reordered beams gives the outputs of the full pass."""
    model = trained_model(flags).eval()
    sample = batch(sides=(side, "right"))
    generator = torch.Generator().manual_seed(beam)
    sentences = 3
    rows = torch.arange(sentences).repeat_interleave(beam)
    with torch.no_grad():
        encoded = model.encoder(sample["src_tokens"], sample["src_lengths"], source_trees=sample["source_trees"])
        encoded = model.encoder.reorder_encoder_out(encoded, rows)
        state: dict = {}
        tokens = torch.full((sentences * beam, 1), 2)
        for step in range(1, steps + 1):
            one, _ = model.decoder(tokens, encoded, incremental_state=state)
            full, _ = model.decoder(tokens, encoded)
            hint = " (context.memory has what it needs of earlier ones)" * (step > 1)
            what = f"step {step} with a beam of {beam}{hint}, compared with the full pass"
            require_close(one[:, -1], full[:, -1], what)
            # reorder within each sentence's beam, as beam search does, then extend
            order = (torch.randint(beam, rows.shape, generator=generator) + rows * beam).long()
            model.decoder.reorder_incremental_state_scripting(state, order)
            encoded = model.encoder.reorder_encoder_out(encoded, order)
            tokens = torch.cat([tokens[order], torch.randint(4, 30, (len(rows), 1), generator=generator)], 1)


def finished_sentences_leave(flags: Flags) -> None:
    """In decoding, after finished sentences left the batch, the other outputs still equal those of the full pass."""
    model = trained_model(flags).eval()
    sample = batch()
    with torch.no_grad():
        encoded = model.encoder(sample["src_tokens"], sample["src_lengths"], source_trees=sample["source_trees"])
        state: dict = {}
        tokens = torch.full((3, 1), 2)
        model.decoder(tokens, encoded, incremental_state=state)
        keep = torch.tensor([0, 2])
        model.decoder.reorder_incremental_state_scripting(state, keep)
        encoded = model.encoder.reorder_encoder_out(encoded, keep)
        tokens = torch.cat([tokens[keep], torch.tensor([[5], [6]])], 1)
        one, _ = model.decoder(tokens, encoded, incremental_state=state)
        full, _ = model.decoder(tokens, encoded)
    require_close(one[:, -1], full[:, -1], "a step after a sentence has left, compared with the full pass")
