"""A page of documents with the words that people marked and those that a prediction depends on."""

from collections.abc import Sequence
from html import escape
from typing import Any

from fairseq_diverse.preparation.eraser import Annotation

STYLE = (
    "body{font:16px/1.7 sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#111;background:#fff}"
    "article{border-top:1px solid #ccc;padding:.5em 0}u{text-decoration:underline 2px;text-underline-offset:3px}"
    "mark{color:inherit;padding:1px 0}b.wrong{color:#b00}p{margin:.3em 0}"
)


def page(title: str, records: Sequence[dict[str, Any]], examples: Sequence[Annotation]) -> str:
    """HTML without a script; everything that is not its own is escaped.

    A word's colour is as strong as its score is, divided by the largest of its document.
    """
    documents = [_document(record, example) for record, example in zip(records, examples, strict=True)]
    legend = "<u>underlined</u>: marked by people; <mark>coloured</mark>: the prediction depends on it (LIME)"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
        f"<h1>{escape(title)}</h1><p>{legend}</p>{''.join(documents)}</html>\n"
    )


def _document(record: dict[str, Any], example: Annotation) -> str:
    scores = [score for part in record["rationales"] for score in part["soft_rationale_predictions"]]
    largest = max(scores) or 1.0
    words = []
    for word, score, marked in zip(example.words, scores, example.evidence, strict=True):
        text = f"<u>{escape(word)}</u>" if marked else escape(word)
        share = score / largest
        words.append(f'<mark style="background:rgba(255,150,0,{share:.2f})">{text}</mark>' if share >= 0.01 else text)
    label = record["classification"]
    prediction = f"<b{'' if label == example.label else ' class=wrong'}>{escape(label)}</b>"
    prediction += f" (p {record['classification_scores'][label]:.3f})"
    query = f"<p>query: {escape(' '.join(example.query))}</p>" if example.query else ""
    return (
        f"<article><h2>{escape(example.name)}</h2><p>class: {escape(example.label)}; predicted: {prediction}</p>{query}"
        f"<p>{' '.join(words)}</p></article>"
    )
