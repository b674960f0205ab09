"""Li et al. (2021), Algorithms 1 and 2, with loops over heads, capsules and dimensions."""

import math

from tests.reference.lists import sigmoid, softmax


def simple_routing(votes, iterations):
    """``votes`` [h][n][d] -> the concatenated capsules."""
    heads, capsules, width = range(len(votes)), range(len(votes[0])), range(len(votes[0][0]))
    agreement = [[0.0 for _ in capsules] for _ in heads]
    omega = []
    for _ in range(iterations):
        share = [softmax(row) for row in agreement]
        omega = []
        for n in capsules:
            total = sum(share[h][n] for h in heads)
            s = [sum(share[h][n] * votes[h][n][i] for h in heads) / total for i in width]
            norm = math.sqrt(sum(x * x for x in s))
            omega.append([x * norm / (1 + norm * norm) for x in s])
        for h in heads:
            for n in capsules:
                agreement[h][n] += sum(omega[n][i] * votes[h][n][i] for i in width)
    return [x for capsule in omega for x in capsule]


def em_routing(votes, beta_a, beta_u, iterations, activation):
    """``votes`` [h][n][d] -> the concatenated capsules."""
    heads, capsules, width = range(len(votes)), range(len(votes[0])), range(len(votes[0][0]))
    share = [[1 / len(capsules) for _ in capsules] for _ in heads]
    mean, active = [], []
    for t in range(iterations):
        temperature = 1 + (min(iterations, 3) - 1) * t / max(1, iterations - 1)
        mean, variance, active = [], [], []
        for n in capsules:
            total = sum(share[h][n] for h in heads)
            mu = [sum(share[h][n] * votes[h][n][i] for h in heads) / (total + 1e-9) for i in width]
            sigma2 = [
                sum(share[h][n] * (votes[h][n][i] - mu[i]) ** 2 for h in heads) / (total + 1e-9) + 1e-9 for i in width
            ]
            chi = sum(math.log(math.sqrt(s)) + (1 + math.log(2 * math.pi)) / 2 for s in sigma2) * total
            active.append(sigmoid(temperature * (beta_a[n] - beta_u[n] * total - chi)) if activation else 1.0)
            mean.append(mu)
            variance.append(sigma2)
        if t + 1 < iterations:
            for h in heads:
                scores = []
                for n in capsules:
                    log_p = sum(
                        -0.5 * math.log(2 * math.pi * variance[n][i])
                        - (votes[h][n][i] - mean[n][i]) ** 2 / (2 * variance[n][i])
                        for i in width
                    )
                    scores.append(math.log(active[n]) + log_p)
                share[h] = softmax(scores)
    return [active[n] * x for n in capsules for x in mean[n]]
