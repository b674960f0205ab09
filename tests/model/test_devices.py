"""A GPU gives the numbers of the CPU: outputs, agreement and gradients, and decoding step by step."""

import pytest
import torch

from fairseq_diverse.attention.request import AttentionRequest
from fairseq_diverse.testing.properties import EVERYWHERE, trained_model
from tests.cases import ALL_ON, CASES, batch, terms
from tests.integration.commands import DEVICES


def run(flags, device):
    """Outputs, agreement and gradients of one pass, and the outputs of the last of four steps of decoding."""
    model = trained_model(flags).to(device)
    sample = {name: tensor.to(device) for name, tensor in batch().items()}
    output, extra = model(**sample, attention_request=AttentionRequest(terms(flags), EVERYWHERE))
    (output.square().mean() + extra["agreement"].sum()).backward()
    results = {"outputs": output, "agreement": extra["agreement"]}
    results |= {name: parameter.grad for name, parameter in model.named_parameters()}
    model.eval()
    words, state = sample["prev_output_tokens"][:, :4], {}
    with torch.no_grad():
        encoded = model.encoder(sample["src_tokens"], sample["src_lengths"], source_trees=sample["source_trees"])
        for step in range(1, 5):
            results["last step"] = model.decoder(words[:, :step], encoded, incremental_state=state)[0]
    return {name: tensor.detach().cpu() for name, tensor in results.items()}


@pytest.mark.parametrize("device", DEVICES[1:])
@pytest.mark.parametrize(("name", "flags"), [("off", {}), *CASES, ALL_ON])
def test_a_gpu_gives_the_numbers_of_the_cpu(name, flags, device):
    expected, got = run(flags, "cpu"), run(flags, device)
    for of, value in expected.items():
        torch.testing.assert_close(got[of], value, rtol=1e-3, atol=1e-4, msg=lambda text, of=of: f"{of}: {text}")
