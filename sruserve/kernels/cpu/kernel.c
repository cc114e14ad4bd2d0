/* The recurrences on the CPU, with the machine's widest vectors; `reference/` defines them.
 *
 * Plain C11 with GCC/Clang vector types: no Python, torch, libm or OpenMP to build against. The
 * headers in this folder are included once per instruction set; `current` picks a set at run time.
 *
 * The bits of a (sequence, channel) do not depend on the rest of the call. Every channel uses the
 * same vector arithmetic with explicit FMAs (the compiler must not contract any other operation),
 * and a tail of channels is padded to a complete vector.
 */
#include <sched.h>
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

/* As in `cell.py`. MAX is taken: it is the vectors' maximum. */
enum kind { SRU, LRN, QRNN, SUM, MAX_OF, SHIFT, DECAY };
enum activation { IDENTITY, TANH, RELU, SELU };
#define EACH_KIND(make) \
    make(SRU) make(LRN) make(QRNN) make(SUM) make(MAX_OF) make(SHIFT) make(DECAY)
enum { KINDS = DECAY + 1 };

/* The arguments of `reference_scan`, in the order in which `library.py` packs them. */
struct scan {
    const char *u, *residual;
    char *h;
    const float *weight_c, *bias;
    float *states;
    const int64_t *offsets, *source, *target;
    int64_t rows, blocks, width, sequences, state_rows, state_width, column, backward_from;
    int64_t bfloat16, kind, activation, updated_reset, threads;
    double scale, keep;
};

_Static_assert(sizeof(struct scan) == 24 * 8, "Python packs 24 fields of 8 bytes");

enum { OK, BAD_OFFSETS, BAD_ROW, BAD_COLUMN, BAD_COUNT, NO_MEMORY, BAD_WORK, BAD_ID, BAD_KEY };

/* One sequence and one run of channels, from the first step in its direction of time. */
struct walk {
    const char *u, *x; /* x: the highway input or LRN's output gate, or NULL */
    char *h;
    const float *weight_c, *bias; /* SRU's forget; reset is `width` further */
    const float *start;           /* NULL: zeros */
    float *end;                   /* NULL: not stored */
    int64_t u_step, x_step, h_step, plane; /* bytes; plane: from one block of u to the next */
    int64_t width, channels, steps;
    float scale, keep;
    int planes, activation, updated_reset; /* planes: without the plane of x */
};

static const float LOG2_E = 1.44269504f;
static const float SELU_SCALE = 1.05070099f, SELU_ALPHA = 1.67326324f;

typedef float quarter __attribute__((vector_size(16))); /* a quarter of the widest vector */

#include "step.h"

#include "integer.h"

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define NAME(name) JOIN(name, SET)
#define vf NAME(vf)
#define vi NAME(vi)
#define vu NAME(vu)
#define vh NAME(vh)
#define vb NAME(vb)
#define loose NAME(loose)
#define loose_half NAME(loose_half)

/* MIN and MAX return their second argument if either is NaN. */
#define SET baseline
#define LANES 4
#define TARGET
#define FMA(a, b, c) ((a) * (b) + (c))
#define MIN(a, b) NAME(pick)((a) < (b), (a), (b))
#define MAX(a, b) NAME(pick)((a) > (b), (a), (b))
#define WIDEN(half) __builtin_convertvector(half, vu)
#define TRUNCATE(bits) __builtin_convertvector(bits, vh)
#define BYTES(numbers) __builtin_convertvector(numbers, vb)
#include "each.h"

#if defined(__x86_64__)
#define SET avx2
#define LANES 8
#define TARGET __attribute__((target("avx2,fma")))
#define FMA(a, b, c) ((vf)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define MIN(a, b) ((vf)_mm256_min_ps((__m256)(a), (__m256)(b)))
#define MAX(a, b) ((vf)_mm256_max_ps((__m256)(a), (__m256)(b)))
#define WIDEN(half) ((vu)_mm256_cvtepu16_epi32((__m128i)(half)))
#define TRUNCATE(bits) __builtin_convertvector(bits, vh)
#define BYTES(numbers) __builtin_convertvector(numbers, vb)
#include "each.h"

#define SET avx512
#define LANES 16
#define TARGET __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")))
#define FMA(a, b, c) ((vf)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define MIN(a, b) ((vf)_mm512_min_ps((__m512)(a), (__m512)(b)))
#define MAX(a, b) ((vf)_mm512_max_ps((__m512)(a), (__m512)(b)))
#define WIDEN(half) ((vu)_mm512_cvtepu16_epi32((__m256i)(half)))
#define TRUNCATE(bits) ((vh)_mm512_cvtepi32_epi16((__m512i)(bits)))
#define BYTES(numbers) ((vb)_mm512_cvtepi32_epi8((__m512i)(numbers)))
#include "each.h"
#endif

struct instruction_set {
    const char *name;
    int64_t block; /* channels of one full block */
    void (*run[KINDS][2])(struct walk); /* in float32 and bfloat16 */
};

#define RUN_(kind, set) {kind##_float32_##set, kind##_bfloat16_##set},
#define BASELINE(kind) RUN_(kind, baseline)
#define AVX2(kind) RUN_(kind, avx2)
#define AVX512(kind) RUN_(kind, avx512)

static const struct instruction_set SETS[] = {
    {"baseline", 4 * VECTORS, {EACH_KIND(BASELINE)}},
#if defined(__x86_64__)
    {"avx2", 8 * VECTORS, {EACH_KIND(AVX2)}},
    {"avx512", 16 * VECTORS, {EACH_KIND(AVX512)}},
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

/* Use the named set from now on. Returns 0, or -1 if this machine does not support it. */
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

EXPORT void sru_set_parallel(parallel *function) { run_parallel = function; }

/* Data that the threads of one call share. A piece is one sequence and one block of channels. */
struct share {
    const struct scan *scan;
    const struct instruction_set *set;
    int64_t forward; /* number of a sequence's blocks that run forward */
    int64_t per_sequence, pieces, grain;
    _Atomic int64_t next;
};

/* Run `count` adjacent blocks of one sequence and one direction, from block `first`. */
static void run_blocks(const struct share *share, int64_t sequence, int64_t first, int64_t count) {
    const struct scan *s = share->scan;
    const int backward = first >= share->forward;
    const int64_t edge = backward ? s->width : s->backward_from; /* end of this direction */
    const int64_t block = share->set->block;
    const int64_t channel =
        backward ? s->backward_from + (first - share->forward) * block : first * block;
    const int64_t rest = edge - channel, max_channels = count * block;
    const int64_t begin = s->offsets[sequence], end = s->offsets[sequence + 1];
    const int64_t row = backward && end > begin ? end - 1 : begin, sign = backward ? -1 : 1;
    const int64_t size = s->bfloat16 ? 2 : 4, place = s->column + channel;
    const int64_t source = s->source[sequence], target = s->target[sequence];
    struct walk walk = {
        .u = s->u + (row * s->blocks * s->width + channel) * size,
        .h = s->h + (row * s->width + channel) * size,
        .weight_c = s->weight_c ? s->weight_c + channel : NULL,
        .bias = s->bias ? s->bias + channel : NULL,
        .start = source >= 0 ? s->states + source * s->state_width + place : NULL,
        .end = target >= 0 ? s->states + target * s->state_width + place : NULL,
        .u_step = sign * s->blocks * s->width * size,
        .h_step = sign * s->width * size,
        .plane = s->width * size,
        .width = s->width,
        .channels = rest < max_channels ? rest : max_channels,
        .steps = end - begin,
        .scale = 1.0f,
        .keep = (float)s->keep,
        .planes = s->blocks < 3 ? (int)s->blocks : 3,
        .activation = (int)s->activation,
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
    share->set->run[s->kind][s->bfloat16](walk);
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

static void run_scan(const struct scan *s) {
    struct share share = {.scan = s, .set = &SETS[current()]};
    const int64_t block = share.set->block;
    share.forward = (s->backward_from + block - 1) / block;
    share.per_sequence = share.forward + (s->width - s->backward_from + block - 1) / block;
    share.pieces = s->sequences * share.per_sequence;
    if (!share.pieces) return;
    const int64_t work = s->rows * s->width;
    if (s->threads < 2 || !run_parallel || work < SERIAL) {
        share.grain = share.pieces;
        take_shares(&share);
        return;
    }
    share.grain = GRAIN * share.pieces / work + 1;
    /* Always use torch's number of threads: libgomp ends the threads that a smaller team omits. */
    run_parallel(take_shares, &share, (unsigned)s->threads, 0);
}

/* Run a recurrence over a ragged batch. Writes nothing unless it returns OK. */
EXPORT int sru_scan(const struct scan *s) {
    const int bad = check(s);
    if (!bad) run_scan(s);
    return bad;
}

#include "layer.h"

#include "matrix.h"

#include "integer_matrix.h"

#include "stack.h"

#include "slices.h"

#include "attention_call.h"

#include "decoder_attention_call.h"

/* The sizes by which Python packs its arguments, and the number of kinds; a library of another
 * version has other ones. */
EXPORT const int64_t *sru_version(void) {
    static const int64_t version[] = {sizeof(struct scan), sizeof(struct gated),
                                      sizeof(struct attention), sizeof(struct matrix_call),
                                      sizeof(struct layer), sizeof(struct stack),
                                      sizeof(struct integer_call),
                                      sizeof(struct decoder_attention), GROUP, KINDS};
    return version;
}
