"""The keys of ``configs/data/*.yaml``; ``docs/configs.md`` explains them."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairseq_diverse.preparation.raw import name_of_test
from fairseq_diverse.preparation.sources import Sources, known_keys
from fairseq_diverse.support.languages import base_language
from fairseq_diverse.support.typed import NAMES, read_yaml

SPLITS = ("train", "valid", "test")
TEST_NAME = re.compile(r"\w[\w.+-]{,99}")
TOKENIZERS = ("moses", "jieba", "none")
SEGMENTERS = ("subword-nmt", "sentencepiece", "t5")

# Keys and their default values; a value must have the type of the default.
SIDE_DEFAULTS: dict[str, Any] = {"normalize": True, "tokenizer": "moses"}
SIDE_DEFAULTS |= dict.fromkeys(("aggressive-dashes", "escape", "lowercase", "truecase"), False)
FILTER_DEFAULTS = {"min-length": 1, "max-length": 0, "max-ratio": 0.0, "dedup": False}
BPE_DEFAULTS = {"kind": "subword-nmt", "size": 32000, "joint": True, "threshold": 0}
TOP_KEYS = ("source", "target", "files", *SIDE_DEFAULTS, "filter", "bpe", "joined-dictionary", "sources")


@dataclass(frozen=True)
class DataConfig:
    """A data set and the settings of its preparation.

    Args:
        sides: for "source" and "target", the language and the keys of ``SIDE_DEFAULTS``. With "source" alone the data
            set is text for masked language models. For GLUE the sides are "input0" and "input1", and a ``suffix``
            replaces the language in file names; as text they are "source" and "target", with languages input and label.
        files: split -> prefix of its raw files; for ``test`` a list if the test sets have names.
        filter, bpe: the keys of ``FILTER_DEFAULTS`` and ``BPE_DEFAULTS``.
        joined_dictionary: whether source and target share one dictionary.
        sources: archives of the raw files; None if the user provides the raw files.
        glue: name of the GLUE task; empty for other data.
    """

    name: str
    sides: dict[str, dict[str, Any]]
    files: dict[str, Any]
    filter: dict[str, Any]
    bpe: dict[str, Any]
    joined_dictionary: bool
    sources: Sources | None = None
    glue: str = ""

    @property
    def languages(self) -> tuple[str, ...]:
        """The ending of each side's file names: its language, or its suffix for GLUE."""
        return tuple(side.get("suffix", side["language"]) for side in self.sides.values())

    @property
    def endings(self) -> tuple[str, ...]:
        """The ending of each side's raw files: as ``languages``, but with the language as it was given (zh-CN)."""
        return tuple(side.get("raw", name) for side, name in zip(self.sides.values(), self.languages, strict=True))

    @property
    def tests(self) -> tuple[str, ...]:
        """Names of the test sets; a single test set that is not in a list is called test."""
        return tuple(map(name_of_test, self.files["test"])) if self.named else ("test",) * ("test" in self.files)

    @property
    def translates(self) -> bool:
        return "target" in self.sides

    @property
    def unit(self) -> str:
        """What one line is called in messages: pairs, examples or lines."""
        return "examples" if self.glue else "pairs" if self.translates else "lines"

    def monolingual(self, language: str = "") -> "DataConfig":
        """This data set with one side only (default: the source) and no test set, for masked language models.

        Raises:
            ValueError: no side has this language.
        """
        sides = [side for side in self.sides.values() if language in ("", side["language"], side.get("raw"))]
        if not sides:
            raise ValueError(f"--monolingual {language}: {self.name} has {', '.join(self.languages)}")
        name = f"{self.name}.{sides[0]['language']}" if self.translates else self.name
        files = {split: self.files[split] for split in ("train", "valid")}
        return replace(self, name=name, sides={"source": sides[0]}, files=files, sources=None)

    @property
    def named(self) -> bool:
        return isinstance(self.files.get("test"), list)

    @property
    def splits(self) -> dict[str, str]:
        """Split -> prefix of its raw files; further test sets are the splits test1, test2, ..."""
        if not self.named:
            return self.files
        first, *more = self.files["test"]
        return {**self.files, "test": first} | {f"test{number}": prefix for number, prefix in enumerate(more, start=1)}

    @classmethod
    def load(cls, path: Path) -> "DataConfig":
        """Read a YAML file; errors name the file and the key.

        Raises:
            ValueError: not YAML, an unknown or missing key, a value of the wrong type or out of range.
        """
        content = read_yaml(path)
        try:
            return cls.from_mapping(path.stem, content)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @classmethod
    def from_mapping(cls, name: str, content: Any) -> "DataConfig":
        known_keys(content, TOP_KEYS, "")
        sides: dict[str, dict[str, Any]] = {}
        for side in ("source", "target") if "target" in content else ("source",):
            language = content.get(side)
            code = language.replace("-", "_") if isinstance(language, str) else ""  # fairseq splits names at hyphens
            if not code.isidentifier():
                raise ValueError(f'{side}: must be a language code such as "en" or "zh-CN", not {language!r}')
            further = {"raw": language} if code != language else {}
            further |= {"rules": rules} if (rules := base_language(language)) != language else {}
            sides[side] = {"language": code, **further}
        if len({side["language"] for side in sides.values()}) < len(sides):
            raise ValueError(f"source and target are both {content['source']}; give two languages")
        for key, default in SIDE_DEFAULTS.items():
            value = content.get(key, default)
            both = value if isinstance(value, dict) else {"source": value, "target": value}
            known_keys(both, ("source", "target"), f"{key}: ")
            for side in sides:
                sides[side][key] = _typed(f"{key} of the {side}", both.get(side, default), default)
        for side, steps in sides.items():
            _one_of(f"tokenizer of the {side}", steps["tokenizer"], TOKENIZERS)
            if steps["lowercase"] and steps["truecase"]:
                raise ValueError(f"lowercase and truecase exclude each other ({side})")
        files = _files(content.get("files", {}))
        limits = _section("filter", content.get("filter", {}), FILTER_DEFAULTS)
        for key, value in limits.items():
            if value < 0:
                raise ValueError(f"filter: {key} must not be negative, got {value}")
        bpe = _section("bpe", content.get("bpe", {}), BPE_DEFAULTS)
        _one_of("bpe: kind", bpe["kind"], SEGMENTERS)
        if bpe["size"] < 1 or bpe["threshold"] < 0:
            raise ValueError(f"bpe: size must be at least 1 and threshold at least 0, got {bpe}")
        if bpe["threshold"] and bpe["kind"] != "subword-nmt":
            raise ValueError("bpe: threshold needs the kind subword-nmt")
        joined = _typed("joined-dictionary", content.get("joined-dictionary", bpe["joint"]), True)
        config = cls(name, sides, files, limits, bpe, joined)
        if "target" not in content:
            if "sources" in content:
                raise ValueError("sources: archives are for two languages; name a target")
            return config.monolingual()
        if "sources" not in content:
            return config
        languages = (content["source"], content["target"])
        return replace(config, sources=Sources.from_mapping(content["sources"], languages, config.splits))

    def as_dict(self) -> dict[str, Any]:
        """All settings of the preparation (not the name), in the order of the configuration file."""
        limits = {key: value for key, value in self.filter.items() if key != "dedup" or value}  # older data
        settings = {"sides": self.sides, "files": self.files, "filter": limits, "bpe": self.bpe}
        return settings | {"joined-dictionary": self.joined_dictionary} | ({"glue": self.glue} if self.glue else {})


def _files(content: Any) -> dict[str, Any]:
    """The section ``files``, checked; ``test`` stays the list that it may be."""
    defaults = {split: split for split in SPLITS}
    tests = content.get("test") if isinstance(content, dict) else None
    if not isinstance(tests, list):
        return _section("files", content, defaults)
    if not tests or not all(isinstance(prefix, str) for prefix in tests):
        raise ValueError(f"files: test: a prefix or a list of prefixes expected, got {tests!r}")
    names = [*map(name_of_test, tests)]
    if wrong := [name for name in names if not TEST_NAME.fullmatch(name)]:
        allowed = "letters, digits and . _ + - only"
        raise ValueError(f"files: test, or --test: {wrong[0]!r} cannot be the name of a test set: {allowed}")
    if len(set(names)) < len(names) or {"train", "valid"} & set(names) or "test" in names[1:]:
        must = "must differ from each other and from train, valid and test"
        names_of = f"{', '.join(names)}: the names of test sets (a prefix without folders)"
        raise ValueError(f"files: test, or --test: {names_of} {must}")
    return _section("files", {**content, "test": tests[0]}, defaults) | {"test": tests}


def _section(name: str, content: Any, defaults: dict[str, Any]) -> dict[str, Any]:
    known_keys(content, tuple(defaults), f"{name}: ")
    return {key: _typed(f"{name}: {key}", content.get(key, default), default) for key, default in defaults.items()}


def _typed(name: str, value: Any, default: Any) -> Any:
    if type(default) is float and type(value) is int:
        return float(value)
    if type(value) is not type(default):
        raise ValueError(f"{name}: {NAMES[type(default).__name__]} expected, not {value!r}")
    return value


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}: {value!r} is not one of {', '.join(allowed)}")
