"""One step at a time with cached state, beams reordered at random, gives the numbers of the full pass."""

import pytest
import torch

from tests.cases import ALL_ON, CASES, batch, build_model


@pytest.mark.parametrize(("beam", "side"), [(1, "left"), (5, "left"), (5, "right")])
@pytest.mark.parametrize(("name", "flags"), [("off", {}), *CASES, ALL_ON])
def test_step_by_step_equals_full_pass(name, flags, beam, side):
    model = build_model(flags).eval()
    sample = batch(sides=(side, "right"))
    generator = torch.Generator().manual_seed(beam)
    sentences, steps = 3, 6
    rows = torch.arange(sentences).repeat_interleave(beam)
    with torch.no_grad():
        encoded = model.encoder(sample["src_tokens"], sample["src_lengths"], source_trees=sample["source_trees"])
        encoded = model.encoder.reorder_encoder_out(encoded, rows)
        state: dict = {}
        tokens = torch.full((sentences * beam, 1), 2)
        for _ in range(steps):
            step, _ = model.decoder(tokens, encoded, incremental_state=state)
            full, _ = model.decoder(tokens, encoded)
            torch.testing.assert_close(step[:, -1], full[:, -1], rtol=1e-5, atol=1e-5)
            # reorder within each sentence's beam, as beam search does, then extend
            order = (torch.randint(beam, rows.shape, generator=generator) + rows * beam).long()
            model.decoder.reorder_incremental_state_scripting(state, order)
            encoded = model.encoder.reorder_encoder_out(encoded, order)
            tokens = torch.cat([tokens[order], torch.randint(4, 30, (len(rows), 1), generator=generator)], 1)


@pytest.mark.parametrize(("name", "flags"), [("off", {}), *CASES, ALL_ON])
def test_a_finished_sentence_leaves_the_batch(name, flags):
    """Fewer rows than before: the caches of cross-attention shrink too."""
    model = build_model(flags).eval()
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
        step, _ = model.decoder(tokens, encoded, incremental_state=state)
        full, _ = model.decoder(tokens, encoded)
    torch.testing.assert_close(step[:, -1], full[:, -1], rtol=1e-5, atol=1e-5)
