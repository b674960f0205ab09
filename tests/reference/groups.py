"""Loop version of the figures of groups of sentences, and Holm's correction."""

from scipy import stats


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


def t_test(row, rows):
    """p of a row's mean against that of the first of all rows, with the deviation of all of them."""
    squares, freedom = 0.0, 0
    for scores in rows:
        squares += sum((score - sum(scores) / len(scores)) ** 2 for score in scores)
        freedom += len(scores) - 1
    difference = sum(row) / len(row) - sum(rows[0]) / len(rows[0])
    error = (squares / freedom * (1 / len(row) + 1 / len(rows[0]))) ** 0.5
    return 2 * stats.t.sf(abs(difference) / error, freedom)


def holm(p_values):
    """By key, the p-values after Holm's step-down correction."""
    adjusted, largest = {}, 0.0
    ordered = sorted(p_values, key=p_values.__getitem__)
    for place, key in enumerate(ordered):
        largest = max(largest, min(1.0, (len(ordered) - place) * p_values[key]))
        adjusted[key] = largest
    return adjusted
