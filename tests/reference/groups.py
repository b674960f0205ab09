"""Loop version of the figures of groups of sentences, and Holm's correction."""


def nll(of_seeds, chosen):
    """Mean over seeds of the mean NLL of the chosen sentences."""
    means = []
    for values in of_seeds:
        total = 0.0
        for index in chosen:
            total += values[index]
        means.append(total / len(chosen))
    return sum(means) / len(means)


def nll_word(values, words, chosen):
    """NLL a word of the chosen sentences, of one seed."""
    total, count = 0.0, 0
    for index in chosen:
        total += values[index]
        count += words[index]
    return total / count


def holm(p_values):
    """By key, the p-values after Holm's step-down correction."""
    adjusted, largest = {}, 0.0
    ordered = sorted(p_values, key=p_values.__getitem__)
    for place, key in enumerate(ordered):
        largest = max(largest, min(1.0, (len(ordered) - place) * p_values[key]))
        adjusted[key] = largest
    return adjusted
