/* Routing-by-agreement of float32 votes with capsules of width 1, one token at a time, so that all of a token's iterations
   stay in the first-level cache. Formulas and names as in functional/routing.py, whose plain functions are the reference.
   v: votes (tokens, H, N); out, grad_out: (tokens, N); grad_v: (tokens, H, N). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define EPSILON 1e-9f
#define FOR(i, n) for (int i = 0; i < (n); i++)

/* whether all of x[0..n) are within +-1e17, by their bits: this file is compiled for finite numbers, others are left to
   torch (return code 2). The capsule of a NaN or infinite vote is NaN or infinite too: checking the capsules is enough. */
static int moderate(const float *x, size_t n) {
    int top = 0;
    for (size_t i = 0; i < n; i++) {
        int bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffff;
        top = bits > top ? bits : top;
    }
    return top <= 0x5bb1a2bc;
}

/* softmax over n of x[0..n), in place */
static void softmax(float *restrict x, int n) {
    float top = x[0], sum = 0;
    FOR(i, n) top = x[i] > top ? x[i] : top;
    FOR(i, n) { x[i] = expf(x[i] - top); sum += x[i]; }
    const float scale = 1 / sum;
    FOR(i, n) x[i] *= scale;
}

static float temperature(int t, int iterations) {
    int rise = (iterations < 3 ? iterations : 3) - 1, last = iterations > 1 ? iterations - 1 : 1;
    return 1 + (float)rise * t / last;
}

/* ---- EM routing: the arrays of one step are adjacent ---- */
enum { TOTAL, INVERSE, MEAN, VARIANCE, LOG_SIGMA, ACTIVE, INACTIVE, FIELDS };
#define STEP(t, field) (steps + ((size_t)(t) * (FIELDS + H) + (field)) * N)
#define SHARE(t) STEP(t, FIELDS) /* (H, N) */
#define Z(n) (lambda * (beta_a[n] - beta_u[n] * total[n] - (log_sigma[n] + HALF_LOG_2_PI_E) * total[n]))
static const float HALF_LOG_2_PI_E = 1.4189385332046727f;

/* d = v - v_0, each capsule's votes relative to its first: EM routing is shift-invariant except for the mean, and relative
   votes that nearly agree keep full precision. MEAN is the mean's distance from v_0, so that v - mean = d - MEAN. */
static void em_steps(const float *restrict v, int H, int N, int iterations, const float *beta_a, const float *beta_u,
                     float *restrict d, float *steps) {
    FOR(h, H) FOR(n, N) d[h * N + n] = v[h * N + n] - v[n];
    FOR(i, H * N) SHARE(0)[i] = 1.0f / N;
    FOR(t, iterations) {
        float *restrict share = SHARE(t), *restrict total = STEP(t, TOTAL), *restrict inverse = STEP(t, INVERSE);
        float *restrict mean = STEP(t, MEAN), *restrict variance = STEP(t, VARIANCE);
        float *restrict log_sigma = STEP(t, LOG_SIGMA), *restrict active = STEP(t, ACTIVE);
        float *restrict inactive = STEP(t, INACTIVE); /* 1 - active, in full precision */
        memset(total, 0, N * sizeof(float));
        memset(mean, 0, N * sizeof(float));
        memset(variance, 0, N * sizeof(float));
        FOR(h, H) FOR(n, N) { total[n] += share[h * N + n]; mean[n] += share[h * N + n] * d[h * N + n]; }
        FOR(n, N) { inverse[n] = 1 / (total[n] + EPSILON); mean[n] = (mean[n] - EPSILON * v[n]) * inverse[n]; }
        FOR(h, H) FOR(n, N) { float c = d[h * N + n] - mean[n]; variance[n] += share[h * N + n] * c * c; }
        FOR(n, N) {
            variance[n] = variance[n] * inverse[n] + EPSILON;
            log_sigma[n] = 0.5f * logf(variance[n]);
            active[n] = 1;
        }
        float *restrict offset = t + 1 < iterations ? STEP(t + 1, TOTAL) : NULL; /* free until then */
        if (beta_a) {
            const float lambda = temperature(t, iterations);
            /* two loops, since with three stores in one the compiler's aliasing check fails and nothing is vectorized */
            FOR(n, N) {
                const float z = Z(n), small = expf(-fabsf(z)), larger = 1 / (1 + small), smaller = small * larger;
                active[n] = z < 0 ? smaller : larger;
                inactive[n] = z < 0 ? larger : smaller;
            }
            if (t + 1 < iterations)
                FOR(n, N) offset[n] = fminf(Z(n), 0) + logf(fmaxf(active[n], inactive[n])) - log_sigma[n];
        } else if (t + 1 < iterations) FOR(n, N) offset[n] = -log_sigma[n];
        if (t + 1 < iterations) {
            float *restrict half = STEP(t + 1, INVERSE);
            FOR(n, N) half[n] = -0.5f / variance[n];
            FOR(h, H) {
                float *restrict next = SHARE(t + 1) + h * N;
                FOR(n, N) { float c = d[h * N + n] - mean[n]; next[n] = c * c * half[n] + offset[n]; }
                softmax(next, N);
            }
        }
    }
}

int em_forward(const float *v, int tokens, int H, int N, int iterations, const float *beta_a, const float *beta_u,
               float *out) {
    float *steps = malloc(sizeof(float) * iterations * (FIELDS + H) * N), *d = malloc(sizeof(float) * H * N);
    if (!steps || !d) { free(steps); free(d); return 1; }
    int fine = !beta_a || (moderate(beta_a, N) && moderate(beta_u, N));
    for (int m = 0; m < tokens && fine; m++) {
        const float *first = v + (size_t)m * H * N;
        em_steps(first, H, N, iterations, beta_a, beta_u, d, steps);
        const float *mean = STEP(iterations - 1, MEAN), *active = STEP(iterations - 1, ACTIVE);
        FOR(n, N) out[(size_t)m * N + n] = active[n] * (mean[n] + first[n]);
        fine = moderate(mean, N) && moderate(out + (size_t)m * N, N);
    }
    free(steps);
    free(d);
    return fine ? 0 : 2;
}

/* grad_beta_a, grad_beta_u (N) are added to */
int em_backward(const float *v, int tokens, int H, int N, int iterations, const float *beta_a, const float *beta_u,
                const float *grad_out, float *grad_v, float *grad_beta_a, float *grad_beta_u) {
    float *steps = malloc(sizeof(float) * iterations * (FIELDS + H) * N);
    float *work = malloc(sizeof(float) * (6 + 2 * H) * N);
    if (!steps || !work) { free(steps); free(work); return 1; }
    float *restrict g_mean = work, *restrict g_log_a = work + N, *restrict g_total = work + 2 * N;
    float *restrict g_log_sigma = work + 3 * N, *restrict g_variance = work + 4 * N, *restrict g_sum = work + 5 * N;
    float *restrict g_share = work + 6 * N, *restrict d = g_share + H * N; /* (H, N) */
    int fine = !beta_a || (moderate(beta_a, N) && moderate(beta_u, N));
    for (int m = 0; m < tokens && fine; m++) {
        const float *restrict first = v + (size_t)m * H * N, *restrict g = grad_out + (size_t)m * N;
        float *restrict gv = grad_v + (size_t)m * H * N;
        em_steps(first, H, N, iterations, beta_a, beta_u, d, steps);
        if (!(fine = moderate(STEP(iterations - 1, MEAN), N) && moderate(g, N))) break;
        memset(gv, 0, sizeof(float) * H * N);
        for (int t = iterations - 1; t >= 0; t--) {
            const float *restrict total = STEP(t, TOTAL), *restrict inverse = STEP(t, INVERSE);
            const float *restrict mean = STEP(t, MEAN), *restrict variance = STEP(t, VARIANCE);
            const float *restrict log_sigma = STEP(t, LOG_SIGMA), *restrict active = STEP(t, ACTIVE);
            const float *restrict inactive = STEP(t, INACTIVE);
            const float *restrict share = SHARE(t);
            const int last = t + 1 == iterations;
            memset(g_total, 0, sizeof(float) * N);
            memset(g_variance, 0, sizeof(float) * N);
            memset(g_sum, 0, sizeof(float) * N); /* of the centred votes' gradients over heads */
            if (last) {
                FOR(n, N) {
                    g_mean[n] = g[n] * active[n];
                    g_log_a[n] = g_mean[n] * (mean[n] + first[n]);
                    g_log_sigma[n] = 0;
                }
            } else { /* through the E-step: g_share becomes the gradient of the logits */
                memset(g_mean, 0, sizeof(float) * N);
                memset(g_log_a, 0, sizeof(float) * N);
                FOR(h, H) {
                    const float *restrict next = SHARE(t + 1) + h * N;
                    float *restrict gs = g_share + h * N, dot = 0;
                    FOR(n, N) dot += gs[n] * next[n];
                    FOR(n, N) {
                        float logit = (gs[n] - dot) * next[n], c = d[h * N + n] - mean[n];
                        gs[n] = logit;
                        g_log_a[n] += logit;
                        g_variance[n] += logit * c * c;
                    }
                }
                FOR(n, N) { g_log_sigma[n] = -g_log_a[n]; g_variance[n] = g_variance[n] / variance[n] * 0.5f / variance[n]; }
            }
            if (beta_a) {
                const float lambda = temperature(t, iterations);
                FOR(n, N) {
                    float cost = -lambda * g_log_a[n] * inactive[n];
                    grad_beta_a[n] -= cost;
                    grad_beta_u[n] += cost * total[n];
                    g_total[n] += cost * (beta_u[n] + log_sigma[n] + HALF_LOG_2_PI_E);
                    g_log_sigma[n] += cost * total[n];
                }
            }
            FOR(n, N) g_variance[n] = (g_variance[n] + 0.5f * g_log_sigma[n] / variance[n]) * inverse[n];
            FOR(h, H) FOR(n, N) { /* gradient of the centred vote */
                float c = d[h * N + n] - mean[n], weight = 2 * g_variance[n] * share[h * N + n];
                if (!last) weight -= g_share[h * N + n] / variance[n];
                gv[h * N + n] += weight * c;
                g_sum[n] += weight * c;
            }
            FOR(n, N) {
                g_mean[n] = (g_mean[n] - g_sum[n]) * inverse[n];
                g_total[n] -= g_variance[n] * (variance[n] - EPSILON);
            }
            FOR(h, H) FOR(n, N) {
                float c = d[h * N + n] - mean[n];
                gv[h * N + n] += share[h * N + n] * g_mean[n];
                g_share[h * N + n] = (g_variance[n] * c + g_mean[n]) * c + g_total[n];
            }
        }
    }
    free(steps);
    free(work);
    return fine ? 0 : 2;
}

/* ---- simple routing ---- */
enum { S, SCALE, OMEGA, SIMPLE_FIELDS };
#define SIMPLE(t, field) (steps + ((size_t)(t) * (SIMPLE_FIELDS + 2 * H) + (field)) * N)
#define PART(t) SIMPLE(t, SIMPLE_FIELDS)         /* (H, N): share of each head in a capsule */
#define COUPLING(t) SIMPLE(t, SIMPLE_FIELDS + H) /* (H, N): C, softmax over n of B */

static void simple_steps(const float *restrict v, int H, int N, int iterations, float *restrict b, float *steps) {
    memset(b, 0, sizeof(float) * H * N);
    FOR(t, iterations) {
        float *restrict part = PART(t), *restrict coupling = COUPLING(t);
        float *restrict s = SIMPLE(t, S), *restrict scale = SIMPLE(t, SCALE), *restrict omega = SIMPLE(t, OMEGA);
        /* C_hn / sum_h C_hn, computed as a softmax over heads of log C to avoid 0/0 */
        FOR(n, N) scale[n] = -3e38f;
        FOR(h, H) {
            const float *restrict row = b + h * N;
            float top = row[0], sum = 0;
            FOR(n, N) top = row[n] > top ? row[n] : top;
            FOR(n, N) { coupling[h * N + n] = expf(row[n] - top); sum += coupling[h * N + n]; }
            const float log_sum = top + logf(sum);
            FOR(n, N) {
                coupling[h * N + n] /= sum;
                float log_c = row[n] - log_sum;
                part[h * N + n] = log_c;
                scale[n] = log_c > scale[n] ? log_c : scale[n];
            }
        }
        memset(s, 0, sizeof(float) * N);
        memset(omega, 0, sizeof(float) * N);
        FOR(h, H) FOR(n, N) {
            float e = expf(part[h * N + n] - scale[n]);
            part[h * N + n] = e;
            omega[n] += e; /* for now the sum */
            s[n] += e * v[h * N + n];
        }
        FOR(n, N) { scale[n] = 1 / omega[n]; s[n] *= scale[n]; }
        FOR(h, H) FOR(n, N) part[h * N + n] *= scale[n];
        FOR(n, N) omega[n] = s[n] * fabsf(s[n]) / (1 + s[n] * s[n]);
        if (t + 1 < iterations) FOR(h, H) FOR(n, N) b[h * N + n] += omega[n] * v[h * N + n];
    }
}

int simple_forward(const float *v, int tokens, int H, int N, int iterations, float *out) {
    float *steps = malloc(sizeof(float) * iterations * (SIMPLE_FIELDS + 2 * H) * N), *b = malloc(sizeof(float) * H * N);
    if (!steps || !b) { free(steps); free(b); return 1; }
    int fine = 1;
    for (int m = 0; m < tokens && fine; m++) {
        simple_steps(v + (size_t)m * H * N, H, N, iterations, b, steps);
        memcpy(out + (size_t)m * N, SIMPLE(iterations - 1, OMEGA), sizeof(float) * N);
        fine = moderate(SIMPLE(iterations - 1, S), N);
    }
    free(steps);
    free(b);
    return fine ? 0 : 2;
}

int simple_backward(const float *v, int tokens, int H, int N, int iterations, const float *grad_out, float *grad_v) {
    float *steps = malloc(sizeof(float) * iterations * (SIMPLE_FIELDS + 2 * H) * N);
    float *work = malloc(sizeof(float) * (2 + 2 * H) * N);
    if (!steps || !work) { free(steps); free(work); return 1; }
    float *restrict g = work, *restrict along = work + N, *restrict g_b = work + 2 * N, *restrict g_log = g_b + H * N;
    int fine = 1;
    for (int m = 0; m < tokens && fine; m++) {
        const float *restrict x = v + (size_t)m * H * N;
        float *restrict gv = grad_v + (size_t)m * H * N;
        simple_steps(x, H, N, iterations, g_b, steps);
        if (!(fine = moderate(SIMPLE(iterations - 1, S), N) && moderate(grad_out + (size_t)m * N, N))) break;
        memset(gv, 0, sizeof(float) * H * N);
        memset(g_b, 0, sizeof(float) * H * N);
        memcpy(g, grad_out + (size_t)m * N, sizeof(float) * N);
        for (int t = iterations - 1; t >= 0; t--) {
            const float *restrict s = SIMPLE(t, S), *restrict omega = SIMPLE(t, OMEGA);
            const float *restrict part = PART(t), *restrict coupling = COUPLING(t);
            if (t + 1 < iterations) { /* B grew by Omega V after this step */
                memset(g, 0, sizeof(float) * N);
                FOR(h, H) FOR(n, N) {
                    gv[h * N + n] += g_b[h * N + n] * omega[n];
                    g[n] += g_b[h * N + n] * x[h * N + n];
                }
            }
            FOR(n, N) { float q = 1 + s[n] * s[n]; g[n] *= 2 * fabsf(s[n]) / q / q; along[n] = 0; }
            FOR(h, H) FOR(n, N) {
                gv[h * N + n] += part[h * N + n] * g[n];
                along[n] += part[h * N + n] * g[n] * x[h * N + n];
            }
            if (t == 0) break;
            FOR(h, H) {
                float sum = 0;
                FOR(n, N) {
                    float value = part[h * N + n] * (g[n] * x[h * N + n] - along[n]);
                    g_log[h * N + n] = value;
                    sum += value;
                }
                FOR(n, N) g_b[h * N + n] += g_log[h * N + n] - coupling[h * N + n] * sum;
            }
        }
    }
    free(steps);
    free(work);
    return fine ? 0 : 2;
}
