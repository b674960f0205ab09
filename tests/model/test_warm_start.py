"""A plain model's parameters start one with mechanisms, where encoder and decoder have different widths too."""

import pytest
import torch

from tests.cases import ALL_ON, CASES, build_model

WIDTHS = {"share_all_embeddings": False, "decoder_embed_dim": 48, "decoder_output_dim": 48}


@pytest.mark.parametrize(("name", "flags"), [*CASES, ALL_ON])
def test_what_the_plain_model_has_is_taken_and_the_rest_is_as_it_was(name, flags):
    plain, model = (build_model({**WIDTHS, **more}, seed=seed).state_dict() for more, seed in (({}, 1), (flags, 2)))
    started = build_model({**WIDTHS, **flags}, seed=2)
    started.load_state_dict(dict(plain))
    for key, value in started.state_dict().items():
        its = plain[key] if key in plain and plain[key].shape == value.shape else model[key]
        assert torch.equal(value, its), key
