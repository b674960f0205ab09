"""Load models from checkpoints, with readable errors."""

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils
from fairseq.models.transformer import TransformerModel
from fairseq.tasks.translation import TranslationTask
from omegaconf import OmegaConf

from fairseq_diverse.checkpoints.loading import load_checkpoint, settings_of
from fairseq_diverse.host.loading import INITIAL_FILES, upgraded
from fairseq_diverse.models.diverse_transformer import DiverseTransformerModel
from fairseq_diverse.models.layers import compile_layers
from fairseq_diverse.support.errors import UserError


def load_models(
    paths: Sequence[str | Path],
    data: str | Path,
    look: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda settings: {},
    **settings: Any,
) -> tuple[list[Any], Any, Any]:
    """The models of the checkpoints, the configuration of the last one, and a task with the dictionaries of ``data``.

    Models trained with trees come first, because their task lets fairseq's ``transformer`` accept trees.

    Args:
        look: gets the task's settings in each checkpoint before its model is built; returns more ``settings``.
        settings: settings of task and model that replace those in the checkpoints.

    Raises:
        UserError: a file is missing or not a checkpoint, or dictionaries are missing, do not fit or were merged.
    """
    states = [(str(path), load_checkpoint(path)) for path in paths]
    models, cfg, task = [], None, None
    for path, state in sorted(states, key=lambda file: "syntax" not in str(task_of(settings_of("task", file[1])))):
        replaced = {"data": str(data), **settings, **look(settings_of("task", state)), **dict.fromkeys(INITIAL_FILES)}
        state = upgraded(path, state, replaced)
        (model,), cfg, task = checkpoint_utils.load_model_ensemble_and_task([path], replaced, task, state=state)
        if getattr(getattr(model, "cfg", None), "merge_src_tgt_embed", False):
            why = "after which the task numbers words otherwise than the data; fairseq-generate translates with it"
            raise UserError(f"{path}: trained with --merge-src-tgt-embed, {why}")
        compile_layers(model, None)  # a few batches are faster without
        models.append(model)
    return models, cfg, task


def task_of(settings: Mapping[str, Any]) -> Any:
    return settings.get("_name") or settings.get("task")


def arguments(settings: Any) -> Namespace:
    """A copy of a model's settings as arguments; those of an exported file are a dictionary."""
    values: Any = vars(settings) if isinstance(settings, Namespace) else OmegaConf.to_container(settings)
    return Namespace(**values)


def load_model(path: str | Path, data: str | Path) -> tuple[DiverseTransformerModel, Any]:
    """The model of a checkpoint, and its task with the dictionaries of ``data``.

    A checkpoint of fairseq's ``transformer`` becomes the same model with every mechanism off.

    Raises:
        UserError: as ``load_models``, or the model is of another kind.
    """
    changed: dict[str, Any] = {"from_checkpoint": "", "checkpoint_data": ""}  # it names no second checkpoint
    changed |= {"checkpoint_activations": False, "offload_activations": False}  # head outputs have no gradients then
    (model,), cfg, task = load_models([path], data, **changed)
    if type(model) is TransformerModel:
        plain, model = model, DiverseTransformerModel.build_model(arguments(cfg.model), task)
        model.load_state_dict(plain.state_dict())
    if not isinstance(model, DiverseTransformerModel):
        raise UserError(f"{path}: a {cfg.model._name} model; give a diverse_transformer or transformer")
    return model.eval(), task


def require_translation(path: str | Path, task: Any) -> None:
    """Raise ``UserError`` if a checkpoint's task is not between two languages, such as one of several pairs."""
    if not isinstance(task, TranslationTask):
        wrong = "another task than translation and translation_with_syntax"
        raise UserError(f"{path}: trained for {wrong}; fairseq-generate translates with it")
