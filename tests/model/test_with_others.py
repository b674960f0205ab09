"""Two mechanisms on the same attention train, decode and ignore padding, unless one refuses the other."""

import pytest

from fairseq_diverse.attention.registry import MECHANISMS
from fairseq_diverse.testing import properties
from fairseq_diverse.testing.properties import definition
from tests.cases import ALL_ON, CASES, build_model

NAMES = [*MECHANISMS]


@pytest.mark.parametrize(
    ("name", "component"), [(name, component) for name in NAMES[:-1] for component in MECHANISMS[name].components]
)
def test_each_with_every_other(name, component):
    properties.with_others(name, component, NAMES[NAMES.index(name) + 1 :])


def test_a_new_process_loads_them_all():
    differences = properties.reload([flags for _, flags in [*CASES, ALL_ON]])
    assert len(differences) == len(CASES) + 1 and max(differences) <= 1e-6


def test_what_a_checkpoint_does_not_keep_changes_the_outputs_of_a_new_process(monkeypatch):
    def trained_model(flags):
        model = build_model(flags)
        model.encoder.embed_scale *= 2
        return model

    monkeypatch.setattr(definition, "trained_model", trained_model)
    assert properties.reload([{}])[0] > 1e-3
