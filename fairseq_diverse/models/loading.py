"""Models from checkpoints, with errors a user can fix."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils
from fairseq.models.transformer import TransformerModel

from fairseq_diverse.models.diverse_transformer import DiverseTransformerModel
from fairseq_diverse.support.errors import UserError


def load_models(paths: Sequence[str | Path], data: str | Path, **settings: str) -> tuple[list[Any], Any, Any]:
    """The models of checkpoints, the configuration of the last, and a task with the dictionaries of ``data``.

    Args:
        settings: of task and model, in place of those that the checkpoints have.

    Raises:
        UserError: a file that is not a checkpoint or absent, or dictionaries that are absent or do not fit.
    """
    return checkpoint_utils.load_model_ensemble_and_task([*map(str, paths)], {"data": str(data), **settings})


def load_model(path: str | Path, data: str | Path) -> tuple[DiverseTransformerModel, Any]:
    """The model of a checkpoint, and its task with the dictionaries of ``data``.

    A checkpoint of fairseq's ``transformer`` becomes the same model with every mechanism off.

    Raises:
        UserError: as ``load_models``, or another kind of model.
    """
    (model,), cfg, task = load_models([path], data, from_checkpoint="", checkpoint_data="")  # of no other checkpoint
    if type(model) is TransformerModel:
        plain = model
        model = DiverseTransformerModel.build_model(Namespace(**vars(cfg.model)), task)
        model.load_state_dict(plain.state_dict())
    if not isinstance(model, DiverseTransformerModel):
        raise UserError(f"{path}: a {cfg.model._name} model; diverse_transformer or transformer is needed")
    return model.eval(), task
