"""T5's objective, with loops."""


def spans(words, left_out, end, sentinel):
    """Source and target of a text whose ``left_out`` words are left out; ``sentinel(i)`` is the i-th one, from 0."""
    source, target, number = [], [], 0
    for place, word in enumerate(words):
        if not left_out[place]:
            source.append(word)
            continue
        if place == 0 or not left_out[place - 1]:
            source.append(sentinel(number))
            target.append(sentinel(number))
            number += 1
        target.append(word)
    return [*source, end], [*target, end]


def joined(source, target, end, is_sentinel):
    """The text that source and target are of."""
    parts, words = {}, []
    for word in target[:-1]:
        if is_sentinel(word):
            parts[word] = current = []
        else:
            current.append(word)
    for word in source[:-1]:
        words += parts.pop(word) if is_sentinel(word) else [word]
    assert source[-1] == target[-1] == end and not parts
    return words
