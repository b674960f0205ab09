"""What fairseq does wrong without an error is corrected."""

import pytest
import torch
from fairseq.optim import AMPOptimizer
from omegaconf import OmegaConf


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
