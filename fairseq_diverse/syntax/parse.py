"""Parse a text file with one single-threaded process per core; resumable, one tree per line."""

import hashlib
import itertools
import json
import multiprocessing
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.queues import SimpleQueue
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from fairseq_diverse.support.errors import UserError
from fairseq_diverse.support.files import atomic_write, iterate_lines, refuse_pipe, write_text
from fairseq_diverse.support.parallel import parallel_map
from fairseq_diverse.support.processes import locked
from fairseq_diverse.syntax import parsers
from fairseq_diverse.syntax.escapes import without_moses
from fairseq_diverse.syntax.makers import versions

CHUNK = 500  # lines parsed and stored at a time
CHUNKS_A_PROCESS = 200  # a parser's memory grows; starting a new one takes a few seconds
EMPTY = "empty line"
WORDS, CHARACTERS = 20_000, 1_000  # limits per line and per word; a parser needs gigabytes for more
ENDLESS = f"more than {WORDS:,} words, or {CHARACTERS:,} characters in a word"


@dataclass(frozen=True)
class Job:
    """The text and the parser; a job resumes with the parts of an equal job."""

    kind: str
    parser: str
    model: str
    language: str
    digest: str  # of the text
    first: int  # line, from 0
    last: int  # exclusive
    grammar: str = ""  # the hash of a grammar


class Unparsed(NamedTuple):
    """A line without a tree, counted from 1."""

    line: int
    reason: str


def parse_file(
    text: Path, out: Path, how: dict[str, str], workers: int, shard: tuple[int, int] | None, gpus: Sequence[str]
) -> tuple[int, list[Unparsed]]:
    """Write the trees of a tokenized text, line by line; an interrupted run is resumed. Returns the number of lines,
    and the lines without a tree. Raises ``ValueError``: the text cannot be read, there are parts of another job,
    another process is writing them, or a process died.

    Args:
        text: tokens separated by spaces, one sentence per line; Moses escapes are undone before parsing.
        out: CoNLL-U (``kind`` dependency) or one PTB tree per line (constituency).
        how: ``kind``, ``parser``, ``model``, ``language``, and of a grammar the hash, ``grammar``.
        shard: (i, n): the i-th of n equal parts of the lines, i from 1; None: all lines.
        gpus: names for ``CUDA_VISIBLE_DEVICES`` that the workers take in turn; empty: a CPU."""
    refuse_pipe(text)
    count, digest = _measure(text)
    number, of = shard or (1, 1)
    first, last = count * (number - 1) // of, count * number // of
    lines = list(itertools.islice(iterate_lines(text), first, last))
    job = Job(**how, digest=digest, first=first, last=last)
    parts = out.with_name(f"{out.name}.parts")
    with locked(parts):
        _take_over(parts, job)
        try:
            paths = _parse(lines, out, parts, job, workers, gpus)
        except BaseException:
            if not any(parts.glob("0*.json")):  # nothing to resume
                shutil.rmtree(parts)
            raise
        source = {"shard": {"text": digest, "lines": [first, last]}} if shard else {"text": digest}
        unparsed = _join(paths, out, how | {"versions": versions(how["parser"], how["model"])} | source)
        shutil.rmtree(parts)
    return last - first, unparsed


def refuse_other(out: Path, text: Path, how: dict[str, str]) -> None:
    """Raise ``UserError`` where finished trees are, by what was recorded, of another text or parser."""
    recorded = _read(record_path(out)) if record_path(out).exists() else {}
    recorded |= recorded.get("shard", {})
    wanted = how | {"model": Path(how["model"]).name}
    recorded |= {"model": Path(recorded["model"]).name} if "model" in recorded else {}
    if "text" in recorded and text.exists():  # earlier versions did not record it
        wanted["text"] = _measure(text)[1]
    if differing := next((key for key, value in wanted.items() if recorded.get(key, value) != value), None):
        hashed = differing in ("text", "grammar")
        shown = f"of another {differing}" if hashed else f"of {differing} {recorded[differing]}"
        raise UserError(f"{out}: there already, but {shown}; delete it to parse again, or give another --out")


def _measure(text: Path) -> tuple[int, str]:
    """The number of lines of a text, and the hash of these lines."""
    digest, count, returns = hashlib.sha256(), 0, 0
    for line in iterate_lines(text):
        returns += line.rstrip("\r").count("\r")
        digest.update(f"\n{line}".encode() if count else line.encode())
        count += 1
    if returns >= count > 0:
        raise UserError(f"{text}: its lines end with a carriage return alone; write newlines with tr '\\r' '\\n'")
    return count, digest.hexdigest()


def shard_path(out: Path, number: int, count: int) -> Path:
    """The file of one of ``count`` shards of the trees ``out``."""
    return out.with_name(f"{out.name}.{number}-of-{count}")


def join_shards(out: Path, count: int) -> list[Path]:
    """Join the shards of ``out`` once all are there, and remove them; returns those that are missing, none if ``out``
    is complete. Raises ``Busy``: another process is joining them; ``UserError``: a shard is damaged, or of another
    text, parser or version than the first."""
    shards = [shard_path(out, number, count) for number in range(1, count + 1)]
    if out.exists() or (missing := [shard for shard in shards if not shard.exists()]):
        return [] if out.exists() else missing
    with locked(parts := out.with_name(f"{out.name}.parts")):
        if out.exists():  # joined by another process since
            shutil.rmtree(parts, ignore_errors=True)
            return []
        records = [_read(record_path(shard)) for shard in shards]
        ranges = [record.pop("shard", None) for record in records]
        if None in ranges:
            shard = shards[ranges.index(None)]
            raise UserError(f"{record_path(shard)}: not of a shard; delete {shard} and parse it again")
        ends = [0] + [part["lines"][1] for part in ranges]
        for shard, record, part, first in zip(shards, records, ranges, ends[:-1], strict=True):
            if record != records[0] or part["text"] != ranges[0]["text"] or part["lines"][0] != first:
                why = f"not of the text, parser and version of {shards[0]}"
                raise UserError(f"{shard}: {why}; delete the wrong one and parse it again")
        with atomic_write(out, "wb") as file:
            for shard in shards:
                with open(shard, "rb") as trees:
                    shutil.copyfileobj(trees, file)
            Path(f"{out}.unparsed").unlink(missing_ok=True)  # of earlier trees
            lists = [listed for shard in shards if (listed := Path(f"{shard}.unparsed")).exists()]
            if lists:
                with atomic_write(f"{out}.unparsed", "wb") as joined:
                    joined.writelines(listed.read_bytes() for listed in lists)
            write_text(record_path(out), json.dumps(records[0] | {"text": ranges[0]["text"]}))
        for shard in shards:
            for path in (Path(f"{shard}.unparsed"), record_path(shard), shard):
                path.unlink(missing_ok=True)
        shutil.rmtree(parts)
    return []


def _parse(lines: list[str], out: Path, parts: Path, job: Job, workers: int, gpus: Sequence[str]) -> dict[int, Path]:
    """Parse the missing parts; returns the paths of all, by first line."""
    first, last = job.first, job.last
    chunks = {start: lines[start - first : start - first + CHUNK] for start in range(first, last, CHUNK)}
    paths = {start: parts / f"{start:010d}.json" for start in chunks}
    words = {start: sum(len(line.split()) for line in chunk) for start, chunk in chunks.items()}
    remaining = {start: chunk for start, chunk in chunks.items() if not paths[start].exists()}
    done = sum(words[start] for start in chunks if start not in remaining)
    options: dict[str, Any] = {"initial": done, "unit": " words", "unit_scale": True, "disable": None}
    with tqdm(None, out.name, sum(words.values()), **options) as bar:
        places: SimpleQueue[str] = multiprocessing.get_context("spawn").SimpleQueue()
        for number in range(workers):
            places.put(gpus[number % len(gpus)] if gpus else "")
        # a fork would inherit torch's threads
        with parallel_map(Parsing(job, places), remaining.values(), workers, renewed=CHUNKS_A_PROCESS) as parsed:
            for start, results in zip(remaining, parsed, strict=True):
                write_text(paths[start], json.dumps(results))
                bar.update(words[start])
    return paths


def _join(paths: dict[int, Path], out: Path, record: dict[str, Any]) -> list[Unparsed]:
    """Write ``out`` as the last of its files: if it exists, so do the others."""
    unparsed = []
    with atomic_write(out) as file:
        for start, path in paths.items():
            for line, (tree, reason) in enumerate(_read(path), start + 1):
                file.write(tree)
                if reason:
                    unparsed.append(Unparsed(line, reason))
        Path(f"{out}.unparsed").unlink(missing_ok=True)
        if unparsed:
            write_text(f"{out}.unparsed", "".join(f"{sentence.line}\t{sentence.reason}\n" for sentence in unparsed))
        write_text(record_path(out), json.dumps(record))
    return unparsed


def _read(part: Path) -> Any:
    try:
        return json.loads(part.read_text(encoding="utf-8"))
    except ValueError:
        raise UserError(f"{part}: damaged; delete it and start again") from None


def record_path(out: Path) -> Path:
    return out.with_name(f"{out.name}.json")


def _take_over(parts: Path, job: Job) -> None:
    """Create the folder of parts, or check that its parts belong to this job."""
    record = parts / "job.json"
    if any(parts.glob("0*.json")) and record.exists() and {"grammar": ""} | _read(record) != asdict(job):
        raise UserError(f"{parts}: holds parts of another text, parser or shard; delete it, or give another --out")
    write_text(record, json.dumps(asdict(job)))


class Parsing:
    """Parses lines in a process of its own, which loads the parser when the first lines come.

    Args:
        gpus: names for ``CUDA_VISIBLE_DEVICES`` of the processes that are to start; "" for a CPU.
    """

    parser: parsers.Parser | None = None

    def __init__(self, job: Job, gpus: "SimpleQueue[str]") -> None:
        self.job, self.gpus = job, gpus

    def __call__(self, lines: Sequence[str]) -> list[tuple[str, str]]:
        job = self.job
        if self.parser is None:
            os.environ["OMP_NUM_THREADS"] = "1"
            os.environ["CUDA_VISIBLE_DEVICES"] = gpu = self.gpus.get()
            Finalize(None, self.gpus.put, (gpu,), exitpriority=0)  # for the process that replaces this one
            self.parser = parsers.load_parser(job.kind, job.parser, job.model, job.language, gpu=bool(gpu))
        return parse_lines(self.parser, job.kind, lines)


def parse_lines(parser: parsers.Parser, kind: str, lines: Sequence[str]) -> list[tuple[str, str]]:
    """The text of each line's tree, and the reason if it has none; sentences are parsed in order of length."""
    sentences = [[without_moses(token) for token in line.split()] for line in lines]
    usual = [n for n, words in enumerate(sentences) if 0 < len(words) <= WORDS and max(map(len, words)) <= CHARACTERS]
    order = sorted(usual, key=lambda n: len(sentences[n]))
    parsed = dict(zip(order, parsers.parse_safely(parser, [sentences[n] for n in order]), strict=True))
    results = []
    for n, words in enumerate(sentences):
        tree, reason = parsed.get(n, (None, ENDLESS if words else EMPTY))
        if kind == "dependency":
            rows = tree or "".join(f"{i}\t{word}" + "\t_" * 8 + "\n" for i, word in enumerate(words, 1))
            results.append((f"{f'# unparsed = {reason}' if reason else '# parsed = yes'}\n{rows}\n", reason))
        else:
            results.append((tree or "\n", reason))
    return results
