"""What `check` promises of a mechanism holds for each setting of each one on each component, all together, and none."""

import pytest
import torch

from fairseq_diverse.attention.registry import MECHANISMS
from fairseq_diverse.testing import properties
from tests.cases import ALL_ON, CASES, batch, dictionary

EVERY = [("off", {}), *CASES, ALL_ON]
HERE = {  # instead of forty steps; a target's padding is on the right
    "step by step = full pass, beam 1": lambda flags: properties.step_by_step(flags, beam=1),
    "step by step = full pass, padded on the right": lambda flags: properties.step_by_step(flags, side="right"),
    "float32 finite, without maps": lambda flags: properties.half_types(flags, torch.float32),
    "float32 finite, with maps": lambda flags: properties.half_types(flags, torch.float32, need_weights=True),
    "float16 finite, without maps": lambda flags: properties.half_types(flags, torch.float16),
}
ALONE = "gradients, also with activation checkpointing"
HOLDS = {title: holds for title, holds in properties.PROPERTIES.items() if title != "one graph of torch.compile"} | HERE
# other types and the disagreement's gradients show these, too
SLOW = {title for title in HOLDS if title.startswith("float32") or title in ("float16 finite, without maps", ALONE)}


@pytest.mark.parametrize("title", [pytest.param(title, marks=[pytest.mark.slow] * (title in SLOW)) for title in HOLDS])
@pytest.mark.parametrize(("name", "flags"), EVERY)
def test_properties(name, flags, title):
    if flags or title != "has an effect":
        HOLDS[title](flags)


@pytest.mark.parametrize(("name", "flags"), [case for case in CASES if case[0].endswith("-decoder")])
def test_padding_before_a_target_stays_hidden_step_by_step(name, flags):
    """Without positions in the embeddings, which fairseq counts from padding in a step."""
    model = properties.trained_model({**flags, "no_token_positional_embeddings": True}).eval()
    sample = batch(sides=("left", "left"))
    tokens, encoded, state = sample["prev_output_tokens"], model.encoder(sample["src_tokens"]), {}
    with torch.no_grad():
        steps = [model.decoder(tokens[:, : n + 1], encoded, incremental_state=state)[0] for n in range(tokens.size(1))]
        full, real = model.decoder(tokens, encoded)[0], tokens != dictionary().pad()
    torch.testing.assert_close(torch.cat(steps, 1)[real], full[real], rtol=1e-5, atol=1e-5)


NEUTRAL = [name for name, kind in MECHANISMS.items() if kind.neutral is not None or kind.neutral_zeros]


@pytest.mark.parametrize(("name", "place"), [(n, place) for n in NEUTRAL for place in properties.defined_at(n)])
def test_neutral_settings_equal_the_baseline(name, place):
    properties.neutral_is_the_baseline(name, place)
