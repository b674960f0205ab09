"""The figures of groups of sentences, and Holm's correction."""

from statistics import fmean, variance

from scipy import stats


def nll(of_seeds, chosen):
    """Mean over seeds of the mean NLL of the chosen sentences."""
    return fmean(fmean(values[index] for index in chosen) for values in of_seeds)


def nll_word(values, words, chosen):
    """NLL a word of the chosen sentences, of one seed."""
    return sum(values[index] for index in chosen) / sum(words[index] for index in chosen)


def t_test(row, rows):
    """p of a row's mean against that of the first of all rows, with the deviation of all of them."""
    freedom = sum(len(scores) - 1 for scores in rows)
    squares = sum(variance(scores) * (len(scores) - 1) for scores in rows)
    difference = fmean(row) - fmean(rows[0])
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
