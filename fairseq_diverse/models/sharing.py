"""Models to share: export into a folder, and loading from one, or from the Hugging Face hub by name."""

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq.data.data_utils import infer_language_pair
from torch import Tensor

from fairseq_diverse.attention.registry import MECHANISMS, own_names
from fairseq_diverse.checkpoints.loading import load_checkpoint, settings_of
from fairseq_diverse.checkpoints.settings import printable
from fairseq_diverse.checkpoints.shared import CARD, read_config, write_shared
from fairseq_diverse.host.data import data_folders
from fairseq_diverse.host.programs import architectures, tasks
from fairseq_diverse.models.loading import load_models, require_translation, task_of
from fairseq_diverse.models.translating import Translator
from fairseq_diverse.preparation import Preprocessing
from fairseq_diverse.preparation.pipeline import FILE, inside, read_record
from fairseq_diverse.support.errors import UserError, first_line
from fairseq_diverse.support.files import new_folder
from fairseq_diverse.support.installed import install, needed
from fairseq_diverse.syntax.parsers import NAME as PARSER_NAME
from fairseq_diverse.syntax.parsers import recorded_parsers

Card = Callable[[Path, Mapping[str, Any], Mapping[str, Any]], str]
CODE = "code"  # folder of mechanisms of the user's own
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", re.ASCII)
READ = ("*.json", "*.safetensors", "*dict*.txt", "text/*", f"{CODE}/*", CARD)  # of a folder on the hub
WITH_DATA = ("rationales", "logical_inference", "sentence_probing")  # tasks that read the texts of their data


def export_shared(
    checkpoint: str | Path, out: Path, card: Card, data: str | Path | None, user_dir: str | None, version: str
) -> None:
    """Write a model as a new folder: weights, settings, dictionaries, subwords, steps of preparation, and a model card.
    Raises ``UserError``: the checkpoint cannot be loaded with these data, files are missing, or ``out`` exists.

    Args:
        card: makes README.md from the folder, the checkpoint's state and config.json.
        data: prepared data that it was trained on; by default those that the checkpoint names.
        user_dir: folder of its mechanisms, whose Python files go to ``code/``.
        version: of this package."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UserError(f"--out {out}: exists; name a new folder")
    state = load_checkpoint(checkpoint)
    settings: Any = settings_of("task", state)
    if settings.get("from_checkpoint"):
        raise UserError(f"{checkpoint}: probes the encoder of {settings['from_checkpoint']}; share that one")
    if not (folders := data or settings.get("data")):
        raise UserError(f"{checkpoint}: names no data; give --data DIR")
    source = Path(data_folders(folders)[0])
    if not source.is_dir():
        raise UserError(f"{source}: no such folder, which {checkpoint} names as its data; give --data DIR")
    if "source_lang" in settings and not settings["source_lang"]:  # read from names of binarized files, left out here
        settings["source_lang"], settings["target_lang"] = pair = infer_language_pair(str(source))
        if None in pair:
            raise UserError(f"{source}: no binarized text of two languages; give the data of the training as --data")
    model = settings_of("model", state)
    names = own_names(model.get("own_mechanisms"))
    if names and not user_dir:
        raise UserError(f"{checkpoint}: has the mechanism {', '.join(names)}; give its --user-dir")
    with new_folder(out) as part:
        try:
            if not _copy_data(source, part) and task_of(settings) not in WITH_DATA:
                raise UserError(f"{source}: no dictionary (dict*.txt); give the folder of prepared data as --data")
            more: dict[str, Any] = {"version": version, "architecture": model.get("_name") or model.get("arch")}
            more["task"] = task_of(settings)
            if user_dir:
                more |= {"mechanisms": names, CODE: f"{CODE}/{_copy_code(Path(user_dir), part / CODE)}"}
            write_shared(state, part, **more)
            load_models([part], source if more["task"] in WITH_DATA else part)  # what is shared must load
            (part / CARD).write_text(card(part, state, read_config(part)), encoding="utf-8")
            part.replace(out)
        except (UserError, OSError) as error:
            raise UserError(str(error).replace(str(part), str(out))) from None


def _copy_data(data: Path, out: Path) -> bool:
    """The dictionaries, and ``preprocess.json`` with the models that it names; whether there are any."""
    names = {str(path.relative_to(data)) for path in [*data.glob("dict*.txt"), *data.glob("*/dict*.txt")]}
    names = {name for name in names if not name.startswith("text/")}
    if (data / FILE).is_file():
        record = read_record(data)
        Preprocessing.load(data)  # which names what is missing
        parts = (record["bpe"]["model"], record["bpe"]["vocabulary"], record["truecaser"])
        names |= {name for part in parts for name in part.values() if name}
        for kind, how in dict(recorded_parsers(record, str(data / FILE))).items():
            if Path(how["model"]).is_absolute():  # a folder of this machine: elsewhere, the name of a model, or a flag
                how["model"] = Path(how["model"]).name
                if not PARSER_NAME.fullmatch(how["model"]):
                    del record["parsers"][kind]
        (out / FILE).write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    for name in sorted(names):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(inside(data, name), out / name)
    return bool(names)


def _copy_code(folder: Path, out: Path) -> str:
    name = folder.resolve().name
    for path in sorted(folder.rglob("*.py")):
        if path.is_file() and "/." not in f"/{path.relative_to(folder)}":
            (target := out / name / path.relative_to(folder)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    return name


def shared_folder(name: str | Path) -> Path:
    """The folder of a shared model: ``name`` itself, or a copy of ``USER/NAME`` or ``USER/NAME@REVISION`` of the hub.
    Raises ``UserError``: there is none, the hub does not give it, or it has a mechanism whose code is not imported."""
    folder = Path(name)
    if not folder.is_dir():
        if folder.exists() or not HUB_NAME.fullmatch(str(name)):
            raise UserError(f"{name}: no such folder, and not USER/NAME of the Hugging Face hub")
        folder = _downloaded(str(name))
    config = read_config(folder)
    keys = config.get("mechanisms")
    missing = [f"mechanism {key}" for key in map(str, keys if isinstance(keys, list) else ()) if key not in MECHANISMS]
    for kind, known in (("architecture", architectures()), ("task", tasks())):
        missing += [f"{kind} {config.get(kind)}"] * (str(config.get(kind)) not in known)
    if missing and config.get(CODE):
        named, code = printable(", ".join(missing)), folder / str(config[CODE])
        todo = f"which is not run by itself: read that code, then give --user-dir {code}"
        raise UserError(f"{folder}: has the {named} of its author, in {code}, {todo}")
    return folder


def hub() -> Any:
    """The module of the Hugging Face hub. Raises ``UserError``: it is not installed."""
    return needed("huggingface_hub", f"huggingface_hub is not installed; run: {install('share')}")


def _downloaded(name: str) -> Path:
    repository, _, revision = name.partition("@")
    module = hub()
    try:
        return Path(module.snapshot_download(repository, revision=revision or None, allow_patterns=list(READ)))
    except Exception as error:  # of the network, in several libraries' types
        problem = f"not got from the Hugging Face hub ({first_line(error)})"
        raise UserError(f"{name}: no such folder here, and {problem}") from None


def push(folder: Path, name: str, private: bool = False) -> str:
    """Upload a shared model to the hub, as ``USER/NAME``; returns its address. A file that is there is replaced. Raises
    ``UserError``: the folder is not a whole shared model, or the hub refuses it, as without a login."""
    if not HUB_NAME.fullmatch(name) or "@" in name:
        raise UserError(f"--to {name}: a name on the Hugging Face hub is USER/NAME")
    load_checkpoint(folder) if folder.is_dir() else read_config(folder)  # a whole model, or says what is missing
    module = hub()
    try:
        address = module.create_repo(name, private=private, exist_ok=True)
        module.upload_folder(repo_id=name, folder_path=folder, allow_patterns=list(READ))
    except Exception as error:  # as in `_downloaded`
        raise UserError(f"--to {name}: not uploaded ({first_line(error)}); log in with: hf auth login") from None
    return str(address)


@dataclass(frozen=True)
class SharedModel:
    """A shared model in memory.

    Attributes:
        folder: where it was loaded from.
        model: in evaluation mode, called as in fairseq: of translation ``model(src_tokens, src_lengths,
            prev_output_tokens)``, of language models ``model(src_tokens)``.
        task: fairseq's, with the dictionaries.
        config: ``config.json``.
    """

    folder: Path
    model: Any
    task: Any
    config: Mapping[str, Any]

    def translate(self, lines: Sequence[str], **settings: Any) -> list[str]:
        """Translations of lines of raw text, in their order: those of ``fairseq-diverse translate``.

        Args:
            settings: ``beam`` (5), ``lenpen`` (1), ``batch_size`` (64), ``cpu`` and others of `Translator`.

        Raises:
            UserError: it is not a model of translation, or one of its parsers is missing.
        """
        require_translation(self.folder, self.task)
        translated = Translator([self.model], self.task, self.folder, **settings)(lines)
        return [hypotheses[0][1] for hypotheses in translated]

    def encode(self, line: str, side: str = "") -> Tensor:
        """The numbers (T,) of the subwords of a line of raw text in the model's dictionary, and of </s> at its end.

        Args:
            side: ``source`` or ``target``, of GLUE ``input0`` or ``input1``; by default the first that there is.

        Raises:
            ValueError: the model was trained on data without preprocess.json.
        """
        words = self.task.target_dictionary if side == "target" else self.task.source_dictionary
        steps = Preprocessing.load(self.folder)
        if hasattr(self.task.cfg, "source_lang"):
            steps = steps.of_model(self.task)
        pieces = steps.encode(line, side or next(iter(steps.subwords)))
        return words.encode_line(pieces, add_if_not_exist=False).long()


def load_shared(name: str | Path) -> SharedModel:
    """A shared model, from a folder or from the Hugging Face hub. No code of it is run. Raises ``UserError``: as
    `shared_folder` and `load_models`, or its task reads the texts of its data."""
    folder = shared_folder(name)
    config = read_config(folder)
    if config.get("task") in WITH_DATA:
        command = "rationales" if config["task"] == "rationales" else "accuracy"
        todo = f"prepare them, then `fairseq-diverse {command} --checkpoint {folder} --data DATA`"
        raise UserError(f"{folder}: its task, {config['task']}, reads the texts of its data: {todo}")
    (model,), _, task = load_models([folder], folder)
    return SharedModel(folder, model.eval(), task, config)
