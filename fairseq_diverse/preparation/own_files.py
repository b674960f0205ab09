"""A data configuration for files that the user names on the command line, without YAML."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os.path import commonpath
from pathlib import Path
from typing import Any

import yaml

from fairseq_diverse.preparation.config import DataConfig
from fairseq_diverse.support.files import atomic_write
from fairseq_diverse.support.yaml_files import read_yaml


@dataclass(frozen=True)
class OwnFiles:
    """Files of one's own as a configuration: ``prepare(config, raw, out)``, and ``given``, its YAML."""

    config: DataConfig
    raw: Path
    given: Mapping[str, Any]

    @classmethod
    def from_flags(
        cls, out: Path, languages: Sequence[str], prefixes: Mapping[str, Sequence[str]], bpe_size: int | None = None
    ) -> "OwnFiles":
        """
        Args:
            out: the folder to make; its name is the name of the data set.
            languages: of the source, or of source and target.
            prefixes: of train, valid and, for two languages, test: paths to raw files without the language at the end;
                several for test are test sets by their names.
            bpe_size: of the subwords, by default that of configurations.

        Raises:
            ValueError: as ``DataConfig.from_mapping``, or a prefix ends in a language.
        """
        for split, paths in prefixes.items():
            for path in paths:
                if path.endswith(tuple(f".{language}" for language in languages)):
                    prefix = path.rpartition(".")[0]
                    raise ValueError(
                        f"--{split} {path}: leave out the language: {prefix} means {prefix}.{languages[0]}"
                    )
        absolute = {split: [Path(path).resolve() for path in paths] for split, paths in prefixes.items()}
        raw = Path(commonpath([path.parent for paths in absolute.values() for path in paths]))
        files = {split: [str(path.relative_to(raw)) for path in paths] for split, paths in absolute.items()}
        given: dict[str, Any] = {
            **dict(zip(("source", "target"), languages, strict=False)),
            "files": {split: names[0] if len(names) == 1 else names for split, names in files.items()},
            **({"bpe": {"size": bpe_size}} if bpe_size is not None else {}),
        }
        return cls(DataConfig.from_mapping(out.name, given), raw, given)

    def refuse_other(self, path: Path) -> None:
        """
        Raises:
            ValueError: ``path`` is another configuration, which was perhaps edited.
        """
        if path.exists() and read_yaml(path) != self.given:
            raise ValueError(
                f"{path}: exists and says otherwise than the flags; `fairseq-diverse prepare {path} --raw {self.raw}` "
                "follows it, and --overwrite replaces it"
            )

    def write(self, path: Path, out: Path, gpt2_bpe: Path | None = None) -> None:
        command = ["fairseq-diverse", "prepare", str(path), "--raw", str(self.raw), "--out", str(out)]
        again = shlex.join([*command, *(["--gpt2-bpe", str(gpt2_bpe.resolve())] if gpt2_bpe else [])])
        with atomic_write(path) as file:
            file.write(f"# after a change: {' '.join(again.splitlines())} --overwrite\n")
            yaml.safe_dump(self.given, file, sort_keys=False, allow_unicode=True)
