/* Convolutions over float32 maps with the heads as channels, one row of a sentence at a time. Formulas as in
   functional/evolving.py, whose torch form is the reference.
   x: (B, H, R, S); weight: (H, H, K, K); bias: (H); out, positive: (B, H, T, S), the last T of the R rows.
   cells: bytes at cells[b * batch + t * row + s], or NULL; x counts as 0 where they are 0 (then R = T). */
#include <stdlib.h>
#include <string.h>

#ifdef __AVX512F__
enum { LANES = 16 };
#else
enum { LANES = 8 };
#endif
enum { HEADS = 4, VECTORS = 2, STEP = VECTORS * LANES }; /* of a block of results, held in registers */
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#define FOR(i, n) for (int i = 0; i < (n); i++)
#define INSIDE(y) ((y) >= 0 && (y) < z->R)
#define PAIRS ((size_t)z->H * z->K) /* of a head and a row of taps */

typedef struct {
    int B, H, R, T, S, K, top, left;
    long batch, row; /* strides of cells */
    float ratio;
} Sizes;

/* whether all of x[0..n) are within +-1e17, by their bits: this file is compiled for finite numbers, others are left to
   torch (return code 2) */
static int moderate(const float *x, int n) {
    int top = 0;
    FOR(i, n) {
        int bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffff;
        top = bits > top ? bits : top;
    }
    return top <= 0x5bb1a2bc;
}

/* the last K rows of all heads, with zeros before and after each: row y is at of(y, h) */
typedef struct { float *rows; int wide, before; } Ring;

static float *of(const Sizes *z, const Ring *ring, int y, int h) {
    return ring->rows + ((size_t)(INSIDE(y) ? y % z->K : z->K) * z->H + h) * ring->wide; /* after them a row of zeros */
}

static Ring ring(const Sizes *z, int before) {
    const int wide = (z->S + z->K + STEP - 1) / STEP * STEP + STEP;
    return (Ring){calloc((size_t)(z->K + 1) * z->H * wide, sizeof(float)), wide, before};
}

/* sums[g] of a row = start[g] + sum over head h, taps i, j of weight[h][i][j][g] rows[h][y - top + i][s + j] */
static void convolve(const Sizes *z, const Ring *from, int y, int top, const float *weight, const float *start, int G,
                     float *sums) {
    for (int g = 0; g < G; g += HEADS) for (int s = 0; s < z->S; s += STEP) {
        vec sum[HEADS][VECTORS];
        FOR(a, HEADS) FOR(v, VECTORS) sum[a][v] = (vec){} + start[g + a];
        FOR(h, z->H) FOR(i, z->K) {
            const float *row = of(z, from, y - top + i, h) + s, *w = weight + ((size_t)h * z->K + i) * z->K * G + g;
            for (int j = 0; j < z->K; j++, row++, w += G) FOR(v, VECTORS) {
                const vec seen = *(const vec *)(row + v * LANES);
                FOR(a, HEADS) sum[a][v] += w[a] * seen;
            }
        }
        FOR(a, HEADS) FOR(v, VECTORS) *(vec *)(sums + (size_t)(g + a) * from->wide + s + v * LANES) = sum[a][v];
    }
}

/* weight[of a sum][of a row], turned or not, with the heads of sums last, G of them */
static float *packed(const Sizes *z, const float *weight, int G, int turned) {
    const int H = z->H, K = z->K;
    float *out = calloc(PAIRS * K * G, sizeof(float));
    if (out) FOR(g, H) FOR(h, H) FOR(i, K) FOR(j, K) {
        const int from = turned ? ((h * H + g) * K + K - 1 - i) * K + K - 1 - j : ((g * H + h) * K + i) * K + j;
        out[((size_t)(h * K + i) * K + j) * G + g] = weight[from];
    }
    return out;
}

/* row y of x, 0 outside its cells */
static void look(const Sizes *z, const Ring *into, const float *x, const unsigned char *cells, int y) {
    if (INSIDE(y)) FOR(h, z->H) {
        float *row = of(z, into, y, h) + into->before;
        memcpy(row, x + ((size_t)h * z->R + y) * z->S, z->S * sizeof(float));
        if (cells) FOR(s, z->S) row[s] = cells[y * z->row + s] ? row[s] : 0;
    }
}

int maps_forward(const Sizes *z, const float *x, const float *weight, const float *bias, const unsigned char *cells,
                 float *out, unsigned char *positive) {
    const int G = (z->H + HEADS - 1) / HEADS * HEADS, more = z->R - z->T;
    const Ring rows = ring(z, z->left);
    float *w = packed(z, weight, G, 0), *start = calloc(G, sizeof(float));
    float *sums = malloc((size_t)G * rows.wide * sizeof(float));
    int code = rows.rows && w && start && sums ? 0 : 1;
    if (!code) memcpy(start, bias, z->H * sizeof(float));
    for (int b = 0; b < z->B && !code; b++, x += (size_t)z->H * z->R * z->S) {
        for (int y = more - z->top; y < more - z->top + z->K - 1; y++) look(z, &rows, x, cells, y);
        FOR(t, z->T) {
            look(z, &rows, x, cells, t + more - z->top + z->K - 1);
            convolve(z, &rows, t + more, z->top, w, start, G, sums);
            FOR(g, z->H) {
                const size_t at = (((size_t)b * z->H + g) * z->T + t) * z->S;
                const float *sum = sums + (size_t)g * rows.wide, *inner = x + ((size_t)g * z->R + t + more) * z->S;
                FOR(s, z->S) out[at + s] = (1 - z->ratio) * inner[s] + z->ratio * (sum[s] > 0 ? sum[s] : 0);
                if (positive) FOR(s, z->S) positive[at + s] = sum[s] > 0;
                if (!moderate(sum, z->S) || !moderate(out + at, z->S)) code = 2;
            }
        }
        cells += cells ? z->batch : 0;
    }
    free(rows.rows), free(w), free(start), free(sums);
    return code;
}

/* grad_x (B, H, T, S), and grad_weight (H, H, K, K), grad_bias (H), added up over the sentences; R = T */
int maps_backward(const Sizes *z, const float *grad, const float *x, const float *weight, const unsigned char *cells,
                  const unsigned char *positive, float *grad_x, float *grad_weight, float *grad_bias) {
    const int H = z->H, K = z->K, S = z->S, G = (H + HEADS - 1) / HEADS * HEADS, top = K - 1 - z->top;
    const Ring rows = ring(z, z->left), grads = ring(z, K - 1 - z->left);
    float *w = packed(z, weight, G, 1), *start = calloc(G, sizeof(float));
    float *sums = malloc((size_t)G * rows.wide * sizeof(float));
    vec *products = calloc(PAIRS * K * G, sizeof(vec));
    int code = rows.rows && grads.rows && w && start && sums && products ? 0 : 1;
    FOR(b, code ? 0 : z->B) {
        const size_t sentence = (size_t)b * H * z->T * S;
        for (int t = -K; t < z->T; t++) {
            const int newest = t - top + K - 1;
            look(z, &rows, x + sentence, cells, t - z->top + K - 1);
            look(z, &grads, grad + sentence, NULL, newest);
            if (INSIDE(newest)) FOR(g, H) {
                float *row = of(z, &grads, newest, g) + grads.before;
                if (!moderate(row, S)) code = 2;
                const unsigned char *kept = positive + sentence + ((size_t)g * z->T + newest) * S;
                float sum = 0;
                FOR(s, S) row[s] = kept[s] ? row[s] : 0;
                FOR(s, S) sum += row[s];
                grad_bias[g] += z->ratio * sum;
            }
            if (t < 0) continue;
            convolve(z, &grads, t, top, w, start, G, sums);
            FOR(h, H) {
                const size_t at = sentence + ((size_t)h * z->T + t) * S;
                const float *sum = sums + (size_t)h * rows.wide;
                FOR(s, S) grad_x[at + s] = cells && !cells[t * z->row + s] ? 0 : z->ratio * sum[s];
                FOR(s, S) grad_x[at + s] += (1 - z->ratio) * grad[at + s];
                if (!moderate(of(z, &rows, t, h) + rows.before, S) || !moderate(grad_x + at, S)) code = 2;
            }
            for (int g = 0; g < H; g += HEADS) FOR(h, H) FOR(i, K) FOR(j, K) {
                vec *product = products + ((size_t)(h * K + i) * K + j) * G + g;
                const float *row = of(z, &rows, t - z->top + i, h) + j;
                for (int s = 0; s < S; s += LANES) FOR(a, HEADS) {
                    const int head = g + a < H ? g + a : g;
                    product[a] += *(const vec *)(row + s) * *(const vec *)(of(z, &grads, t, head) + grads.before + s);
                }
            }
        }
        cells += cells ? z->batch : 0;
    }
    if (!code) FOR(g, H) FOR(h, H) FOR(i, K) FOR(j, K) {
        const vec product = products[((size_t)(h * K + i) * K + j) * G + g];
        float sum = 0;
        FOR(lane, LANES) sum += product[lane];
        grad_weight[((g * H + h) * K + i) * K + j] = z->ratio * sum;
    }
    free(rows.rows), free(grads.rows), free(w), free(start), free(sums), free(products);
    return code;
}
