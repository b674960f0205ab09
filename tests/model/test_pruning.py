"""A model of which --*-layers-to-keep keeps some layers is the whole model without the others."""

from argparse import Namespace

import pytest
import torch
from torch import nn

from fairseq_diverse.testing.properties import trained_model
from tests.cases import CASES, batch, build_model

KEPT = {"encoder": (1, 2), "decoder": (0, 2)}


@pytest.mark.parametrize(("name", "flags"), [("off", {}), *CASES])
def test_kept_layers_are_what_they_were(name, flags):
    flags = {**flags, "encoder_layers": 3, "decoder_layers": 3}
    keep = {f"{side}_layers_to_keep": ",".join(map(str, kept)) for side, kept in KEPT.items()}
    whole, pruned = trained_model(flags).eval(), build_model({**flags, **keep}).eval()
    pruned.load_state_dict(whole.state_dict(), model_cfg=Namespace(arch="diverse_transformer", **keep))
    for side, kept in KEPT.items():
        half = getattr(whole, side)
        first = half.layers[0].self_attn
        half.layers = nn.ModuleList([half.layers[number] for number in kept])
        for mechanism in (part for part in first.children() if getattr(part, "of_first", ())):  # it is for all layers
            setattr(half.layers[0].self_attn, mechanism.key, mechanism)
    with torch.no_grad():
        torch.testing.assert_close(pruned(**batch())[0], whole(**batch())[0])
