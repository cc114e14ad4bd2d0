/* The SRU recurrence on the CPU, in the widest vectors the machine has; `reference.py` defines it.
 *
 * Plain C11 with GCC/Clang vector types: no Python, torch, libm or OpenMP to build against. The
 * file includes itself once per instruction set, and `current` picks one when it runs.
 *
 * Outputs are the same bits for a (sequence, channel) whatever else the call holds: every channel
 * goes through the same vector arithmetic with explicit FMAs (the compiler may contract nothing),
 * and a tail of channels is padded to a whole vector.
 */
#ifndef LANES

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define EXPORT __attribute__((visibility("default")))

enum { VECTORS = 4 };      /* per block: enough independent chains to hide one step's latency */
enum { AHEAD = 8 };        /* steps between a prefetch and its use */
enum { SERIAL = 32768 };   /* fewest step x channels (10 us) worth waking other threads for */
enum { GRAIN = 4096 };     /* fewest step x channels worth one visit to the shared counter */

/* The arguments of `reference_sru_scan`, as `cpu.py` packs them. */
struct scan {
    const char *u, *residual;
    char *h;
    const float *weight_c, *bias;
    float *states;
    const int64_t *offsets, *source, *target;
    int64_t rows, blocks, width, sequences, state_rows, state_width, column, backward_from;
    int64_t bfloat16, tanh, updated_reset, threads;
    double scale;
};

_Static_assert(sizeof(struct scan) == 22 * 8, "Python packs 22 fields of 8 bytes");

enum { OK = 0, BAD_OFFSETS = 1, BAD_ROW = 2, BAD_COLUMN = 3 };

/* One sequence and one run of channels, from its first step in its own direction of time. */
struct walk {
    const char *u, *x; /* x: the highway input, or NULL */
    char *h;
    const float *weight_c, *bias; /* forget; reset is `width` further */
    const float *start;           /* or NULL: zeros */
    float *end;                   /* or NULL: dropped */
    int64_t u_step, x_step, h_step, plane; /* bytes; plane: from one block of u to the next */
    int64_t width, channels, steps;
    float scale;
    int tanh, updated_reset;
};

static const float LOG2_E = 1.44269504f;

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define NAME(name) JOIN(name, SET)
#define vf NAME(vf)
#define vi NAME(vi)
#define vu NAME(vu)
#define vh NAME(vh)
#define loose NAME(loose)
#define loose_half NAME(loose_half)

/* MIN and MAX return their second argument where either is NaN. */
#define SET baseline
#define LANES 4
#define TARGET
#define FMA(a, b, c) ((a) * (b) + (c))
#define MIN(a, b) NAME(pick)((a) < (b), (a), (b))
#define MAX(a, b) NAME(pick)((a) > (b), (a), (b))
#define WIDEN(half) __builtin_convertvector(half, vu)
#define TRUNCATE(bits) __builtin_convertvector(bits, vh)
#include "cpu.c"

#if defined(__x86_64__)
#define SET avx2
#define LANES 8
#define TARGET __attribute__((target("avx2,fma")))
#define FMA(a, b, c) ((vf)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define MIN(a, b) ((vf)_mm256_min_ps((__m256)(a), (__m256)(b)))
#define MAX(a, b) ((vf)_mm256_max_ps((__m256)(a), (__m256)(b)))
#define WIDEN(half) ((vu)_mm256_cvtepu16_epi32((__m128i)(half)))
#define TRUNCATE(bits) __builtin_convertvector(bits, vh)
#include "cpu.c"

#define SET avx512
#define LANES 16
#define TARGET __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")))
#define FMA(a, b, c) ((vf)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define MIN(a, b) ((vf)_mm512_min_ps((__m512)(a), (__m512)(b)))
#define MAX(a, b) ((vf)_mm512_max_ps((__m512)(a), (__m512)(b)))
#define WIDEN(half) ((vu)_mm512_cvtepu16_epi32((__m256i)(half)))
#define TRUNCATE(bits) ((vh)_mm512_cvtepi32_epi16((__m512i)(bits)))
#include "cpu.c"
#endif

struct instruction_set {
    const char *name;
    int64_t block; /* channels of one full block */
    void (*float32)(struct walk);
    void (*bfloat16)(struct walk);
};

static const struct instruction_set SETS[] = {
    {"baseline", 4 * VECTORS, float32_baseline, bfloat16_baseline},
#if defined(__x86_64__)
    {"avx2", 8 * VECTORS, float32_avx2, bfloat16_avx2},
    {"avx512", 16 * VECTORS, float32_avx512, bfloat16_avx512},
#endif
};

static int supported(int set) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (set == 2)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (set == 1) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return set == 0;
}

static _Atomic int chosen = -1;

static int current(void) {
    int set = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (set >= 0) return set;
    set = (int)(sizeof SETS / sizeof *SETS) - 1;
    while (!supported(set)) --set;
    atomic_store_explicit(&chosen, set, memory_order_relaxed);
    return set;
}

EXPORT const char *sru_instruction_set(void) { return SETS[current()].name; }

/* Use the named set from now on; returns 0, or -1 where this machine lacks it. */
EXPORT int sru_use_instruction_set(const char *name) {
    for (int set = 0; set < (int)(sizeof SETS / sizeof *SETS); ++set)
        if (!strcmp(name, SETS[set].name) && supported(set)) {
            atomic_store_explicit(&chosen, set, memory_order_relaxed);
            return 0;
        }
    return -1;
}

typedef void parallel(void (*body)(void *), void *data, unsigned threads, unsigned flags);
static parallel *run_parallel; /* GOMP_parallel of the OpenMP runtime torch runs on, or NULL */

EXPORT int64_t sru_scan_bytes(void) { return sizeof(struct scan); }

EXPORT void sru_set_parallel(parallel *function) { run_parallel = function; }

/* What the threads of one call share. A piece is one sequence and one block of channels. */
struct share {
    const struct scan *scan;
    const struct instruction_set *set;
    int64_t forward; /* of the blocks `per_sequence`, those that run forward */
    int64_t per_sequence, pieces, grain;
    _Atomic int64_t next;
};

/* Run `count` neighbouring blocks of one sequence and one direction, from block `first`. */
static void run_blocks(const struct share *share, int64_t sequence, int64_t first, int64_t count) {
    const struct scan *s = share->scan;
    const int backward = first >= share->forward;
    const int64_t edge = backward ? s->width : s->backward_from; /* of the direction's channels */
    const int64_t block = share->set->block;
    const int64_t channel =
        backward ? s->backward_from + (first - share->forward) * block : first * block;
    const int64_t rest = edge - channel, most = count * block;
    const int64_t begin = s->offsets[sequence], end = s->offsets[sequence + 1];
    const int64_t row = backward && end > begin ? end - 1 : begin, sign = backward ? -1 : 1;
    const int64_t size = s->bfloat16 ? 2 : 4, place = s->column + channel;
    const int64_t source = s->source[sequence], target = s->target[sequence];
    struct walk walk = {
        .u = s->u + (row * s->blocks * s->width + channel) * size,
        .h = s->h + (row * s->width + channel) * size,
        .weight_c = s->weight_c + channel,
        .bias = s->bias + channel,
        .start = source >= 0 ? s->states + source * s->state_width + place : NULL,
        .end = target >= 0 ? s->states + target * s->state_width + place : NULL,
        .u_step = sign * s->blocks * s->width * size,
        .h_step = sign * s->width * size,
        .plane = s->width * size,
        .width = s->width,
        .channels = rest < most ? rest : most,
        .steps = end - begin,
        .scale = 1.0f,
        .tanh = s->tanh != 0,
        .updated_reset = s->updated_reset != 0,
    };
    if (s->blocks == 4) {
        walk.x = walk.u + 3 * walk.plane;
        walk.x_step = walk.u_step;
    } else if (s->residual) {
        walk.x = s->residual + (row * s->width + channel) * size;
        walk.x_step = walk.h_step;
        walk.scale = (float)s->scale;
    }
    (s->bfloat16 ? share->set->bfloat16 : share->set->float32)(walk);
}

static void take_shares(void *data) {
    struct share *share = data;
    for (;;) {
        int64_t piece = atomic_fetch_add_explicit(&share->next, share->grain, memory_order_relaxed);
        const int64_t left = share->pieces - piece;
        const int64_t stop = piece + (left < share->grain ? left : share->grain);
        if (piece >= stop) return;
        while (piece < stop) {
            const int64_t sequence = piece / share->per_sequence;
            const int64_t first = piece % share->per_sequence;
            const int64_t edge = first < share->forward ? share->forward : share->per_sequence;
            const int64_t count = stop - piece < edge - first ? stop - piece : edge - first;
            run_blocks(share, sequence, first, count);
            piece += count;
        }
    }
}

static int check(const struct scan *s) {
    if (s->column < 0 || s->column + s->width > s->state_width) return BAD_COLUMN;
    if (s->offsets[0] != 0 || s->offsets[s->sequences] > s->rows) return BAD_OFFSETS;
    for (int64_t i = 0; i < s->sequences; ++i) {
        if (s->offsets[i + 1] < s->offsets[i]) return BAD_OFFSETS;
        if (s->source[i] < -1 || s->source[i] >= s->state_rows) return BAD_ROW;
        if (s->target[i] < -1 || s->target[i] >= s->state_rows) return BAD_ROW;
    }
    return OK;
}

/* The recurrence over a ragged batch. Nothing is written unless it returns OK. */
EXPORT int sru_scan(const struct scan *s) {
    const int bad = check(s);
    if (bad) return bad;
    struct share share = {.scan = s, .set = &SETS[current()]};
    const int64_t block = share.set->block;
    share.forward = (s->backward_from + block - 1) / block;
    share.per_sequence = share.forward + (s->width - s->backward_from + block - 1) / block;
    share.pieces = s->sequences * share.per_sequence;
    if (!share.pieces) return OK;
    const int64_t work = s->rows * s->width;
    if (s->threads < 2 || !run_parallel || work < SERIAL) {
        share.grain = share.pieces;
        take_shares(&share);
        return OK;
    }
    share.grain = GRAIN * share.pieces / work + 1;
    /* Always torch's own number of threads: libgomp ends the threads that a smaller team leaves. */
    run_parallel(take_shares, &share, (unsigned)s->threads, 0);
    return OK;
}

#else /* once per instruction set: SET, LANES, TARGET and the operations from FMA on are given */

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * LANES)));
typedef uint16_t vh __attribute__((vector_size(2 * LANES)));
typedef float loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint16_t loose_half __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

TARGET INLINE vf NAME(all)(float value) { return value - (vf){0}; }

TARGET INLINE vf NAME(pick)(vi mask, vf yes, vf no) {
    return (vf)((mask & (vi)yes) | (~mask & (vi)no));
}

/* 2^y to 2 ulp for y in [-126.5, 127.5); beyond, 0 and +inf. NaN stays NaN. */
TARGET INLINE vf NAME(exp2)(vf y) {
    const vf round = NAME(all)(12582912.0f + 127.0f); /* 1.5 * 2^23; 127: the exponent's bias */
    y = MIN(NAME(all)(128.0f), MAX(NAME(all)(-127.0f), y));
    const vf shifted = y + round;
    const vf r = y - (shifted - round);
    vf p = NAME(all)(1.326472731e-3f);
    p = FMA(p, r, NAME(all)(9.671512991e-3f));
    p = FMA(p, r, NAME(all)(5.550733581e-2f));
    p = FMA(p, r, NAME(all)(2.402224243e-1f));
    p = FMA(p, r, NAME(all)(6.931470037e-1f));
    p = FMA(p, r, NAME(all)(1.0f));
    return p * (vf)((vu)shifted << 23);
}

/* The logistic function of x, given y = -log2(e) x. */
TARGET INLINE vf NAME(sigmoid)(vf y) { return 1.0f / (1.0f + NAME(exp2)(y)); }

/* Absolute error 1e-7; near 0 a polynomial keeps the relative error as small (Cephes, tanhf). */
TARGET INLINE vf NAME(tanh)(vf x) {
    const vi sign = (vi)x & INT32_MIN;
    const vf a = (vf)((vi)x ^ sign), z = a * a;
    const vf far = 1.0f - 2.0f / (1.0f + NAME(exp2)(a * (2.0f * LOG2_E)));
    vf p = NAME(all)(-5.70498872745e-3f);
    p = FMA(p, z, NAME(all)(2.06390887954e-2f));
    p = FMA(p, z, NAME(all)(-5.37397155531e-2f));
    p = FMA(p, z, NAME(all)(1.33314422036e-1f));
    p = FMA(p, z, NAME(all)(-3.33332819422e-1f));
    const vf near = FMA(p * z, a, a);
    return (vf)((vi)NAME(pick)(a < 0.625f, near, far) | sign);
}

TARGET INLINE vf NAME(widen)(vh half) { return (vf)(WIDEN(half) << 16); }

/* Round to the nearest bfloat16, ties to even. */
TARGET INLINE vh NAME(narrow)(vf value) {
    const vu bits = (vu)value;
    const vu rounded = bits + 0x7fff + ((bits >> 16) & 1);
    const vu kept = (vu)NAME(pick)(value == value, (vf)rounded, NAME(all)(__builtin_nanf("")));
    return TRUNCATE(kept >> 16);
}

/* The first `count` channels at `from`; the lanes after them are 0. */
TARGET INLINE vf NAME(load)(const char *from, int64_t count, int bfloat16) {
    if (count >= LANES)
        return bfloat16 ? NAME(widen)(*(const loose_half *)from) : (vf)*(const loose *)from;
    vf whole = {0};
    vh half = {0};
    for (int64_t i = 0; i < count; ++i)
        if (bfloat16) half[i] = ((const uint16_t *)from)[i];
        else whole[i] = ((const float *)from)[i];
    return bfloat16 ? NAME(widen)(half) : whole;
}

TARGET INLINE void NAME(store)(char *to, vf value, int64_t count, int bfloat16) {
    const vh half = NAME(narrow)(value);
    if (count >= LANES) {
        if (bfloat16) *(loose_half *)to = half;
        else *(loose *)to = value;
        return;
    }
    for (int64_t i = 0; i < count; ++i)
        if (bfloat16) ((uint16_t *)to)[i] = half[i];
        else ((float *)to)[i] = value[i];
}

/* Neighbouring vectors over all steps, with c in registers; `last`: channels in the last one. */
TARGET INLINE void NAME(steps)(const struct walk *w, int64_t channel, int vectors, int64_t last,
                               int bfloat16) {
    const int64_t size = bfloat16 ? 2 : 4, stride = LANES * size;
    const vf fold = NAME(all)(-LOG2_E); /* into u, weights and biases: sigmoid(x) = 1 / (1 + 2^y) */
    vf c[VECTORS], w_f[VECTORS], w_r[VECTORS], b_f[VECTORS], b_r[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
        const int64_t count = v + 1 < vectors ? LANES : last, at = channel + v * LANES;
        w_f[v] = NAME(load)((const char *)(w->weight_c + at), count, 0) * fold;
        w_r[v] = NAME(load)((const char *)(w->weight_c + w->width + at), count, 0) * fold;
        b_f[v] = NAME(load)((const char *)(w->bias + at), count, 0) * fold;
        b_r[v] = NAME(load)((const char *)(w->bias + w->width + at), count, 0) * fold;
        c[v] = w->start ? NAME(load)((const char *)(w->start + at), count, 0) : (vf){0};
    }
    const char *u = w->u + channel * size, *x = w->x ? w->x + channel * size : 0;
    char *h = w->h + channel * size;
    for (int64_t t = 0; t < w->steps; ++t) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) {
            const int64_t count = v + 1 < vectors ? LANES : last, at = v * stride;
            const uintptr_t ahead = (uintptr_t)u + at + AHEAD * w->u_step;
            __builtin_prefetch((const void *)ahead);
            __builtin_prefetch((const void *)(ahead + w->plane));
            __builtin_prefetch((const void *)(ahead + 2 * w->plane));
            if (x) __builtin_prefetch((const void *)((uintptr_t)x + at + AHEAD * w->x_step));
            const vf z = NAME(load)(u + at, count, bfloat16);
            const vf u_f = NAME(load)(u + w->plane + at, count, bfloat16);
            const vf u_r = NAME(load)(u + 2 * w->plane + at, count, bfloat16);
            const vf f = NAME(sigmoid)(FMA(w_f[v], c[v], FMA(u_f, fold, b_f[v])));
            const vf previous = c[v];
            c[v] = FMA(previous - z, f, z);
            const vf read = w->updated_reset ? c[v] : previous;
            const vf r = NAME(sigmoid)(FMA(w_r[v], read, FMA(u_r, fold, b_r[v])));
            const vf g = w->tanh ? NAME(tanh)(c[v]) : c[v];
            vf out = g * r;
            if (x) {
                const vf skip = NAME(load)(x + at, count, bfloat16) * w->scale;
                out = FMA(g - skip, r, skip);
            }
            NAME(store)(h + at, out, count, bfloat16);
        }
        u += w->u_step;
        h += w->h_step;
        if (x) x += w->x_step;
    }
    if (w->end)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) {
            const int64_t count = v + 1 < vectors ? LANES : last;
            NAME(store)((char *)(w->end + channel + v * LANES), c[v], count, 0);
        }
}

TARGET INLINE void NAME(run)(const struct walk *w, int bfloat16) {
    int64_t channel = 0;
    for (; channel + VECTORS * LANES <= w->channels; channel += VECTORS * LANES)
        NAME(steps)(w, channel, VECTORS, LANES, bfloat16);
    if (channel + 2 * LANES <= w->channels) {
        NAME(steps)(w, channel, 2, LANES, bfloat16);
        channel += 2 * LANES;
    }
    if (channel + LANES <= w->channels) {
        NAME(steps)(w, channel, 1, LANES, bfloat16);
        channel += LANES;
    }
    if (channel < w->channels) NAME(steps)(w, channel, 1, w->channels - channel, bfloat16);
}

TARGET static void NAME(float32)(struct walk walk) { NAME(run)(&walk, 0); }
TARGET static void NAME(bfloat16)(struct walk walk) { NAME(run)(&walk, 1); }

#undef SET
#undef LANES
#undef TARGET
#undef FMA
#undef MIN
#undef MAX
#undef WIDEN
#undef TRUNCATE
#endif
