"""BERT's input, with loops (Devlin et al., 2019, section 3 and Fig. 2)."""


def segment_numbers(words, separator="[SEP]"):
    """0 for the first sentence and the [SEP] at its end, 1 for all that comes behind."""
    numbers, behind = [], False
    for word in words:
        numbers.append(int(behind))
        behind = behind or word == separator
    return numbers


def embedded(words, of_word, of_segment, of_position, gain, bias):
    """Layer norm (eps 1e-12) of word + segment + position, a list of channels for each word; tables are lists."""
    rows = []
    for position, (word, segment) in enumerate(zip(words, segment_numbers(words), strict=True)):
        summed = [a + b + c for a, b, c in zip(of_word[word], of_segment[segment], of_position[position], strict=True)]
        mean = sum(summed) / len(summed)
        variance = sum((x - mean) ** 2 for x in summed) / len(summed)
        rows.append(
            [(x - mean) / (variance + 1e-12) ** 0.5 * g + b for x, g, b in zip(summed, gain, bias, strict=True)]
        )
    return rows
