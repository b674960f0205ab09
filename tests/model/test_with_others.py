"""Two mechanisms on the same attention train, decode and ignore padding, unless one refuses the other."""

import pytest

from fairseq_diverse.attention.registry import MECHANISMS
from fairseq_diverse.testing import properties
from tests.cases import ALL_ON, CASES

NAMES = [*MECHANISMS]


@pytest.mark.parametrize("elsewhere", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NAMES[:-1])
def test_each_with_every_other(name, elsewhere):
    """On one component, of the decoder if both may be there; slow: on the others."""
    together: dict[str, list[str]] = {}
    for other in NAMES[NAMES.index(name) + 1 :]:
        of_both = {*MECHANISMS[name].components} & {*MECHANISMS[other].components}
        first, *rest = sorted(of_both, key=["decoder", "cross", "encoder"].index) or [""]
        for component in rest if elsewhere else [first] * bool(first):
            together.setdefault(component, []).append(other)
    for component, others in together.items():
        properties.with_others(name, component, others)


def test_a_new_process_loads_them_all(monkeypatch):
    """With the same outputs, but for what a checkpoint does not keep."""
    trained_model = properties.trained_model

    def changed_model(flags):
        model = trained_model(flags)
        model.encoder.embed_scale *= 1 if flags else 2
        return model

    monkeypatch.setattr(properties, "trained_model", changed_model)
    changed, *differences = properties.reload([{}, *(flags for _, flags in [*CASES, ALL_ON])])
    assert len(differences) == len(CASES) + 1 and max(differences) <= 1e-6 and changed > 1e-3
