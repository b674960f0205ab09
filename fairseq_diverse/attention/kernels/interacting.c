/* Attention of all ordered pairs of heads in float32, O_ij = softmax(Q_i K_j^T) V_j, for narrow heads and short sentences:
   one sentence and one head of keys at a time, LANES queries of all heads in a register. Formulas as in
   functional/interacting.py, whose torch form is the reference. Q comes scaled.
   q: (B, H, T, Dk); k: (B, H, S, Dk); v: (B, H, S, D); out: (T, B, H, H, D), or (T, B, H, D), the sum over the heads of keys
   times 1 / sqrt(H), where the steps of t are `step` numbers apart.
   allowed: bytes at allowed[b * batch + t * row + s], or NULL; every query sees a key.
   Dropout: a weight is kept where a hash of (seed, sentence, head of keys, query, key) is at least `threshold`, so that the
   backward pass finds the same weights, whatever the number of threads. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifdef __AVX512F__
enum { LANES = 16 };
#else
enum { LANES = 8 };
#endif
enum { WIDE = 4 }; /* registers of queries worked on at a time */
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int ivec __attribute__((vector_size(4 * LANES)));
typedef unsigned uvec __attribute__((vector_size(4 * LANES)));

#define FOR(i, n) for (int i = 0; i < (n); i++)
#define INLINE static inline __attribute__((always_inline))
#define HIDDEN -3e38f /* below every logit of moderate numbers */

typedef struct {
    int B, H, T, S, Dk, D, sum;
    long batch, row; /* strides of allowed */
    long step;       /* of out from t to t + 1 */
    int first;       /* number of the first sentence in the batch */
    unsigned seed[2], threshold; /* the share of weights that is dropped, times 2^32 */
    float gain;      /* 1 / (1 - that share) */
} Sizes;

INLINE vec choose(ivec where, vec a, vec b) { return (vec)(((ivec)a & where) | ((ivec)b & ~where)); }

/* whether all of x[0..n) are within +-1e17, by their bits: this file is compiled for finite numbers. The product of two is
   then finite; other numbers are left to torch (return code 2). */
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

/* e^x of x <= 0 as 2^n 2^f, |f| <= 1/2; 0 below -87 */
INLINE vec exponential(vec x) {
    const ivec seen = x > -87.0f;
    x = (vec)((ivec)x & seen) * 1.4426950408889634f;
    const ivec n = __builtin_convertvector(x - 0.5f, ivec);
    const vec f = x - __builtin_convertvector(n, vec);
    vec power = f * 1.5403530393381609e-4f + 1.3333558146428443e-3f;
    power = power * f + 9.6181291076284772e-3f;
    power = power * f + 5.5504108664821580e-2f;
    power = power * f + 2.4022650695910072e-1f;
    power = power * f + 6.9314718055994531e-1f;
    power = power * f + 1.0f;
    return (vec)(((ivec)power + (n << 23)) & seen);
}

/* 32 well mixed bits of 32 bits (lowbias32 of Wellons, 2018), of one number and of LANES */
#define MIX(x) (x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu, x ^= x >> 16)
static unsigned mixed(unsigned x) { return MIX(x); }
INLINE uvec mixed_lanes(uvec x) { return MIX(x); }

/* ---- one sentence ---- */
typedef struct {
    int keys, vectors; /* keys that a query sees, vectors of queries */
    int *key, *seen;   /* (keys), (vectors): of these the first that one of the queries sees */
    vec *bias;         /* (vectors, keys) 0 or HIDDEN, if not all queries see the same */
    int hidden;        /* whether bias says anything */
    vec *q, *grad_q;   /* (vectors, Dk) */
    vec *out;          /* (vectors, D), or its gradient */
    float *k, *v;      /* (keys, Dk), (keys, D) of one head */
    vec *grad_k, *grad_v;
    vec *weights, *grad_weights; /* (keys, WIDE) */
    vec *dropped;      /* (keys, WIDE) weights after dropout */
    unsigned stream;   /* of random numbers, of this sentence and one head of keys */
    int moderate;      /* whether all numbers are */
    void *memory;
} Sentence;

static int allocate(Sentence *s, const Sizes *z, int backward) {
    const size_t N = (z->H * z->T + LANES - 1) / LANES, S = z->S, Dk = z->Dk, D = z->D;
    const size_t vecs = N * (S + Dk * (1 + backward) + D) + S * WIDE * (1 + 2 * backward) + backward * S * (Dk + D);
    char *at;
    if (!(at = s->memory = malloc(sizeof(vec) * (vecs + 1) + S * (Dk + D) * sizeof(float) + (S + N) * sizeof(int)))) return 1;
    at += sizeof(vec) - (size_t)at % sizeof(vec);
#define TAKE(name, type, count) s->name = (type *)at, at += sizeof(type) * (count)
    TAKE(bias, vec, N * S); TAKE(q, vec, N * Dk); TAKE(out, vec, N * D); TAKE(weights, vec, S * WIDE);
    TAKE(grad_q, vec, backward * N * Dk); TAKE(grad_weights, vec, backward * S * WIDE); TAKE(dropped, vec, backward * S * WIDE);
    TAKE(grad_k, vec, backward * S * Dk); TAKE(grad_v, vec, backward * S * D);
    TAKE(k, float, S * Dk); TAKE(v, float, S * D); TAKE(key, int, S); TAKE(seen, int, N);
    s->vectors = N;
    s->moderate = 1;
    return 0;
}

/* x (H T rows of width D, that of head i and query t at i * head + t * step) into lanes or back. All heads of a query lie
   side by side: in a causal attention the first vectors see few keys. */
static void into_lanes(vec *lanes, const float *x, const Sizes *z, int D, size_t head, size_t step, float factor) {
    FOR(t, z->T) FOR(i, z->H) {
        const int n = t * z->H + i;
        float *to = (float *)(lanes + (size_t)(n / LANES) * D) + n % LANES;
        FOR(d, D) to[d * LANES] = x[i * head + t * step + d] * factor;
    }
}

static void from_lanes(const vec *lanes, float *x, const Sizes *z, int D, size_t head, size_t step, float factor) {
    FOR(t, z->T) FOR(i, z->H) {
        const int n = t * z->H + i;
        const float *from = (const float *)(lanes + (size_t)(n / LANES) * D) + n % LANES;
        FOR(d, D) x[i * head + t * step + d] = from[d * LANES] * factor;
    }
}

static void begin(Sentence *s, const Sizes *z, const float *q, const unsigned char *allowed) {
    const int queries = z->H * z->T, rows = allowed && z->row ? z->T : 1;
    memset(s->q, 0, sizeof(vec) * s->vectors * z->Dk);
    into_lanes(s->q, q, z, z->Dk, (size_t)z->T * z->Dk, z->Dk, 1);
    s->moderate &= moderate((float *)s->q, (size_t)s->vectors * z->Dk * LANES);
    s->keys = s->hidden = 0;
    FOR(c, z->S) {
        int seeing = rows;
        if (allowed) { seeing = 0; FOR(t, rows) seeing += allowed[t * z->row + c] != 0; }
        if (seeing) s->key[s->keys++] = c;
        s->hidden |= seeing && seeing < rows;
    }
    FOR(n, s->vectors) s->seen[n] = s->hidden ? 1 : s->keys;
    if (!s->hidden) return;
    memset(s->bias, 0, sizeof(vec) * s->vectors * s->keys);
    FOR(n, queries) FOR(c, s->keys) {
        if (allowed[n / z->H * z->row + s->key[c]]) s->seen[n / LANES] = c < s->seen[n / LANES] ? s->seen[n / LANES] : c + 1;
        else ((float *)(s->bias + (size_t)(n / LANES) * s->keys + c))[n % LANES] = HIDDEN;
    }
}

static void take_head(Sentence *s, const Sizes *z, const float *k, const float *v, int b, int j) {
    s->stream = mixed(z->seed[0] ^ mixed(z->seed[1] + mixed((unsigned)(z->first + b) * z->H + j)));
    FOR(c, s->keys) {
        memcpy(s->k + (size_t)c * z->Dk, k + (size_t)s->key[c] * z->Dk, sizeof(float) * z->Dk);
        memcpy(s->v + (size_t)c * z->D, v + (size_t)s->key[c] * z->D, sizeof(float) * z->D);
    }
    s->moderate &= moderate(k, (size_t)z->S * z->Dk) & moderate(v, (size_t)z->S * z->D);
}

/* to[c][w] = sum over d of from[w][d] * rows[c][d], two keys at a time */
INLINE void products(vec *to, const vec *from, const float *rows, int keys, int D, const int wide) {
    for (int c = 0; c < keys; c += 2) {
        const float *one = rows + (size_t)c * D, *two = c + 1 < keys ? one + D : one;
        vec a[WIDE], b[WIDE];
        FOR(w, wide) a[w] = b[w] = (vec){0};
        FOR(d, D) FOR(w, wide) { a[w] += from[w * D + d] * one[d]; b[w] += from[w * D + d] * two[d]; }
        FOR(w, wide) to[c * wide + w] = a[w];
        if (c + 1 < keys) FOR(w, wide) to[(c + 1) * wide + w] = b[w];
    }
}

/* to[w][d] += sum over c of from[c][w] * rows[c][d] * factor[w], two d at a time */
INLINE void sums(vec *to, const vec *from, const float *rows, const vec *factor, int keys, int D, const int wide) {
    for (int d = 0; d < D; d += 2) {
        const int other = d + 1 < D;
        vec a[WIDE], b[WIDE];
        FOR(w, wide) a[w] = b[w] = (vec){0};
        FOR(c, keys) {
            const float *row = rows + (size_t)c * D + d;
            FOR(w, wide) { a[w] += from[c * wide + w] * row[0]; b[w] += from[c * wide + w] * row[other]; }
        }
        FOR(w, wide) to[w * D + d] += a[w] * factor[w];
        if (other) FOR(w, wide) to[w * D + d + 1] += b[w] * factor[w];
    }
}

/* to[c][d] += the sum over w of from[c][w] * queries[w][d], two keys at a time */
INLINE void lane_sums(vec *to, const vec *from, const vec *queries, int keys, int D, const int wide) {
    int c = 0;
    for (; c + 1 < keys; c += 2, from += 2 * wide, to += 2 * D) FOR(d, D) {
        vec a = to[d], b = to[D + d];
        FOR(w, wide) { a += from[w] * queries[w * D + d]; b += from[wide + w] * queries[w * D + d]; }
        to[d] = a;
        to[D + d] = b;
    }
    if (c < keys) FOR(d, D) FOR(w, wide) to[d] += from[w] * queries[w * D + d];
}

/* the exponentials of the logits of WIDE vectors, relative to the largest; 1 / their sum; returns how many keys they see */
INLINE int exponentials(Sentence *s, const Sizes *z, int n, vec *factor, const int wide) {
    vec top[WIDE], total[WIDE], *x = s->weights;
    int keys = 1;
    FOR(w, wide) keys = s->seen[n + w] > keys ? s->seen[n + w] : keys;
    products(x, s->q + (size_t)n * z->Dk, s->k, keys, z->Dk, wide);
    if (s->hidden) FOR(w, wide) FOR(c, keys) {
        const vec bias = s->bias[(size_t)(n + w) * s->keys + c];
        x[c * wide + w] = choose(bias < 0.0f, bias, x[c * wide + w]);
    }
    FOR(w, wide) { top[w] = x[w]; total[w] = (vec){0}; }
    FOR(c, keys) FOR(w, wide) top[w] = choose(x[c * wide + w] > top[w], x[c * wide + w], top[w]);
    FOR(c, keys) FOR(w, wide) {
        const vec e = exponential(x[c * wide + w] - top[w]);
        x[c * wide + w] = e;
        total[w] += e;
    }
    FOR(w, wide) factor[w] = 1 / total[w];
    return keys;
}

/* to[c][w] = from[c][w] / (1 - share) where it is kept, else 0; 'to' may be 'from' */
INLINE void drop(vec *to, const vec *from, const Sentence *s, const Sizes *z, int n, int keys, const int wide) {
    uvec query[WIDE], lane;
    unsigned number[LANES];
    FOR(l, LANES) number[l] = l;
    memcpy(&lane, number, sizeof lane);
    FOR(w, wide) query[w] = mixed_lanes((lane + (unsigned)(n + w) * LANES) * 0x9e3779b9u + s->stream);
    FOR(c, keys) FOR(w, wide) {
        const ivec kept = mixed_lanes(query[w] + (unsigned)s->key[c] * 0x85ebca6bu) >= z->threshold;
        to[c * wide + w] = (vec)((ivec)(from[c * wide + w] * z->gain) & kept);
    }
}

INLINE void forward(Sentence *s, const Sizes *z, int n, const int wide) {
    vec factor[WIDE];
    const int keys = exponentials(s, z, n, factor, wide);
    if (z->threshold) drop(s->weights, s->weights, s, z, n, keys, wide);
    sums(s->out + (size_t)n * z->D, s->weights, s->v, factor, keys, z->D, wide);
}

INLINE void backward(Sentence *s, const Sizes *z, int n, const int wide) {
    vec factor[WIDE], mean[WIDE], one[WIDE];
    const int keys = exponentials(s, z, n, factor, wide);
    const vec *q = s->q + (size_t)n * z->Dk, *grad = s->out + (size_t)n * z->D;
    products(s->grad_weights, grad, s->v, keys, z->D, wide);
    if (z->threshold) drop(s->grad_weights, s->grad_weights, s, z, n, keys, wide);
    FOR(w, wide) { mean[w] = (vec){0}; one[w] = (vec){0} + 1; }
    FOR(c, keys) FOR(w, wide) {
        s->weights[c * wide + w] *= factor[w];
        mean[w] += s->weights[c * wide + w] * s->grad_weights[c * wide + w];
    }
    if (z->threshold) drop(s->dropped, s->weights, s, z, n, keys, wide);
    lane_sums(s->grad_v, z->threshold ? s->dropped : s->weights, grad, keys, z->D, wide);
    FOR(c, keys) FOR(w, wide) s->weights[c * wide + w] *= s->grad_weights[c * wide + w] - mean[w];
    sums(s->grad_q + (size_t)n * z->Dk, s->weights, s->k, one, keys, z->Dk, wide);
    lane_sums(s->grad_k, s->weights, q, keys, z->Dk, wide);
}

static void put_head(const Sentence *s, float *to, const vec *from, int S, int D) {
    memset(to, 0, sizeof(float) * S * D);
    FOR(c, s->keys) FOR(d, D) {
        float sum = 0;
        FOR(lane, LANES) sum += from[(size_t)c * D + d][lane];
        to[(size_t)s->key[c] * D + d] = sum;
    }
}

#define ALL_QUERIES(work)                                                  \
    do {                                                                   \
        int n = 0;                                                         \
        for (; n + WIDE <= s.vectors; n += WIDE) work(&s, z, n, WIDE);     \
        for (; n < s.vectors; n++) work(&s, z, n, 1);                      \
    } while (0)

int interacting_forward(const Sizes *z, const float *q, const float *k, const float *v, const unsigned char *allowed,
                        float *out) {
    const int H = z->H, T = z->T, S = z->S, Dk = z->Dk, D = z->D, kept = z->sum ? 1 : H;
    Sentence s;
    if (allocate(&s, z, 0)) return 1;
    for (int b = 0; b < z->B && s.moderate; b++) {
        begin(&s, z, q + (size_t)b * H * T * Dk, allowed ? allowed + b * z->batch : NULL);
        FOR(j, H) {
            take_head(&s, z, k + ((size_t)b * H + j) * S * Dk, v + ((size_t)b * H + j) * S * D, b, j);
            if (!z->sum || j == 0) memset(s.out, 0, sizeof(vec) * s.vectors * D);
            ALL_QUERIES(forward);
            if (!z->sum || j + 1 == H)
                from_lanes(s.out, out + ((size_t)b * H * kept + (z->sum ? 0 : j)) * D, z, D, (size_t)kept * D, z->step,
                           z->sum ? 1 / sqrtf(H) : 1);
        }
    }
    free(s.memory);
    return s.moderate ? 0 : 2;
}

int interacting_backward(const Sizes *z, const float *q, const float *k, const float *v, const unsigned char *allowed,
                         const float *grad, float *grad_q, float *grad_k, float *grad_v) {
    const int H = z->H, T = z->T, S = z->S, Dk = z->Dk, D = z->D, kept = z->sum ? 1 : H;
    Sentence s;
    if (allocate(&s, z, 1)) return 1;
    memset(s.out, 0, sizeof(vec) * s.vectors * D); /* the last lanes, which no query fills */
    for (int b = 0; b < z->B && s.moderate; b++) {
        begin(&s, z, q + (size_t)b * H * T * Dk, allowed ? allowed + b * z->batch : NULL);
        memset(s.grad_q, 0, sizeof(vec) * s.vectors * Dk);
        FOR(j, H) {
            const size_t head = (size_t)b * H + j;
            take_head(&s, z, k + head * S * Dk, v + head * S * D, b, j);
            memset(s.grad_k, 0, sizeof(vec) * s.keys * Dk);
            memset(s.grad_v, 0, sizeof(vec) * s.keys * D);
            if (!z->sum || j == 0) {
                into_lanes(s.out, grad + ((size_t)b * H * kept + (z->sum ? 0 : j)) * D, z, D, (size_t)kept * D, z->step,
                           z->sum ? 1 / sqrtf(H) : 1);
                s.moderate &= moderate((float *)s.out, (size_t)s.vectors * D * LANES);
            }
            ALL_QUERIES(backward);
            put_head(&s, grad_k + head * S * Dk, s.grad_k, S, Dk);
            put_head(&s, grad_v + head * S * D, s.grad_v, S, D);
        }
        from_lanes(s.grad_q, grad_q + (size_t)b * H * T * Dk, z, Dk, (size_t)T * Dk, Dk, 1);
    }
    free(s.memory);
    return s.moderate ? 0 : 2;
}
