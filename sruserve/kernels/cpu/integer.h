/* Rows of bytes times a weight of int8, in integers: exact, so any order gives the same sums.
 *
 * A weight has groups of 16 columns; a group has 16 * 4 numbers for each quad of inputs. Every
 * number of a result is (float)sum * (scale of the row * scale of the column) + bias.
 */

enum { QUAD = 4 };                    /* inputs that are multiplied by one instruction */
enum { GROUP_BYTES = GROUP * QUAD };  /* of a quad of inputs */
static const float TINY = 1e-30f;     /* rows without larger numbers count as zeros */

/* A packed weight. correction: 128 times the sum of a column, because bytes are 128 too large. */
struct integer_weight {
    const int8_t *numbers;
    const float *scale, *bias;
    const int32_t *correction;
    int64_t inputs, outputs;
};

/* Some rows times some groups of columns of a weight, which begin at column `first`. */
struct integer_tile {
    const struct integer_weight *weight;
    const uint8_t *in;
    const float *in_scale;
    float *out; /* of column 0 */
    int64_t in_stride, rows, first, groups;
};

static int64_t quads_of(const struct integer_weight *w) { return (w->inputs + QUAD - 1) / QUAD; }

static const int8_t *numbers_of(const struct integer_weight *w, int64_t column) {
    return w->numbers + column / GROUP * quads_of(w) * GROUP_BYTES;
}

/* Turn the sums of a group of columns of one row into floats. */
INLINE void finish_group(const struct integer_weight *w, const int32_t *sum, float row_scale,
                         int64_t first, float *out) {
    const int64_t left = w->outputs - first;
    float value[GROUP];
    for (int i = 0; i < GROUP; ++i)
        value[i] = (float)sum[i] * (row_scale * w->scale[first + i]) + w->bias[first + i];
    memcpy(out + first, value, (left < GROUP ? left : GROUP) * sizeof *out);
}

static void integers_baseline(const struct integer_tile *t) {
    const struct integer_weight *w = t->weight;
    const int64_t quads = quads_of(w);
    for (int64_t g = 0; g < t->groups; ++g)
        for (int64_t r = 0; r < t->rows; ++r) {
            const int64_t first = t->first + g * GROUP;
            const int8_t *numbers = numbers_of(w, first);
            const uint8_t *in = t->in + r * t->in_stride;
            uint32_t sum[GROUP]; /* unsigned: sums before the correction may wrap */
            for (int i = 0; i < GROUP; ++i) sum[i] = 0u - (uint32_t)w->correction[first + i];
            for (int64_t k = 0; k < quads; ++k, in += QUAD, numbers += GROUP_BYTES)
                for (int i = 0; i < GROUP; ++i)
                    sum[i] += (uint32_t)(in[0] * numbers[4 * i] + in[1] * numbers[4 * i + 1] +
                                         in[2] * numbers[4 * i + 2] + in[3] * numbers[4 * i + 3]);
            finish_group(w, (const int32_t *)sum, t->in_scale[r], first,
                         t->out + r * w->outputs);
        }
}

#if defined(__x86_64__)

/* `rows` rows, at most 2, of a group. Pairs are added in 16 bits times 16: they cannot saturate. */
__attribute__((target("avx2,fma"))) INLINE void
integers_of_group(const struct integer_tile *t, int64_t row, int64_t first, int rows) {
    const struct integer_weight *w = t->weight;
    const int8_t *numbers = numbers_of(w, first);
    const uint8_t *in = t->in + row * t->in_stride;
    __m256i sum[2][4];
#pragma GCC unroll 2
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) sum[r][v] = _mm256_setzero_si256();
    for (int64_t k = quads_of(w); k; --k, in += QUAD, numbers += GROUP_BYTES) {
        __m256i wide[4];
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v)
            wide[v] = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(numbers + 16 * v)));
#pragma GCC unroll 2
        for (int r = 0; r < rows; ++r) {
            int32_t quad;
            memcpy(&quad, in + r * t->in_stride, sizeof quad);
            const __m256i x = _mm256_cvtepu8_epi16(_mm_set1_epi32(quad));
#pragma GCC unroll 4
            for (int v = 0; v < 4; ++v)
                sum[r][v] = _mm256_add_epi32(sum[r][v], _mm256_madd_epi16(x, wide[v]));
        }
    }
#pragma GCC unroll 2
    for (int r = 0; r < rows; ++r) {
        int32_t total[GROUP];
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            const __m256i pairs = _mm256_hadd_epi32(sum[r][2 * half], sum[r][2 * half + 1]);
            const __m256i added = _mm256_permute4x64_epi64(pairs, 0xd8);
            const __m256i *correction = (const __m256i *)(w->correction + first + 8 * half);
            _mm256_storeu_si256((__m256i *)(total + 8 * half),
                                _mm256_sub_epi32(added, _mm256_loadu_si256(correction)));
        }
        finish_group(w, total, t->in_scale[row + r], first, t->out + (row + r) * w->outputs);
    }
}

__attribute__((target("avx2,fma"))) static void integers_avx2(const struct integer_tile *t) {
    for (int64_t g = 0; g < t->groups; ++g) {
        int64_t row = 0;
        for (; row + 2 <= t->rows; row += 2) integers_of_group(t, row, t->first + g * GROUP, 2);
        if (row < t->rows) integers_of_group(t, row, t->first + g * GROUP, 1);
    }
}

#define VNNI __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))

/* sum += bytes * numbers, 4 products in each lane. GCC moves the intrinsic's sums through memory. */
VNNI INLINE __m512i add_products(__m512i sum, __m512i bytes, __m512i numbers) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(bytes), "v"(numbers));
    return sum;
}

/* At most 6 rows times 1 or 4 groups, whose sums fit into registers. */
VNNI INLINE void vnni_tile(const struct integer_tile *t, int64_t row, int64_t first, int rows,
                           int groups) {
    const struct integer_weight *w = t->weight;
    const int64_t quads = quads_of(w), in_stride = t->in_stride;
    const int8_t *numbers = numbers_of(w, first);
    const uint8_t *in = t->in + row * in_stride;
    __m512i sum[6][4];
#pragma GCC unroll 4
    for (int g = 0; g < groups; ++g) {
        const __m512i correction = _mm512_loadu_si512(w->correction + first + g * GROUP);
#pragma GCC unroll 6
        for (int r = 0; r < rows; ++r)
            sum[r][g] = _mm512_sub_epi32(_mm512_setzero_si512(), correction);
    }
    for (int64_t k = 0; k < quads; ++k, in += QUAD, numbers += GROUP_BYTES) {
        __m512i column[4];
#pragma GCC unroll 4
        for (int g = 0; g < groups; ++g)
            column[g] = _mm512_loadu_si512(numbers + g * quads * GROUP_BYTES);
#pragma GCC unroll 6
        for (int r = 0; r < rows; ++r) {
            int32_t quad;
            memcpy(&quad, in + r * in_stride, sizeof quad);
            const __m512i x = _mm512_set1_epi32(quad);
#pragma GCC unroll 4
            for (int g = 0; g < groups; ++g)
                sum[r][g] = add_products(sum[r][g], x, column[g]);
        }
    }
#pragma GCC unroll 4
    for (int g = 0; g < groups; ++g) {
        const int64_t column = first + g * GROUP, left = w->outputs - column;
        const __mmask16 inside = left < GROUP ? (__mmask16)((1 << left) - 1) : 0xffff;
        const __m512 scale = _mm512_loadu_ps(w->scale + column);
        const __m512 bias = _mm512_loadu_ps(w->bias + column);
#pragma GCC unroll 6
        for (int r = 0; r < rows; ++r) {
            const __m512 row_scale = _mm512_set1_ps(t->in_scale[row + r]);
            __m512 value = _mm512_cvtepi32_ps(sum[r][g]);
            value = _mm512_mul_ps(value, _mm512_mul_ps(row_scale, scale));
            value = _mm512_add_ps(value, bias);
            _mm512_mask_storeu_ps(t->out + (row + r) * w->outputs + column, inside, value);
        }
    }
}

#define VNNI_TILE(rows)                                         \
    case rows:                                                  \
        if (groups == 4) vnni_tile(t, row, first, rows, 4);     \
        else vnni_tile(t, row, first, rows, 1);                 \
        break

VNNI static void integers_vnni(const struct integer_tile *t) {
    int64_t g = 0;
    while (g < t->groups) {
        const int64_t groups = t->groups - g >= 4 ? 4 : 1, first = t->first + g * GROUP;
        for (int64_t row = 0; row < t->rows;) {
            const int64_t left = t->rows - row, turns = (left + 5) / 6;
            const int64_t count = (left + turns - 1) / turns;
            switch (count) {
                VNNI_TILE(1); VNNI_TILE(2); VNNI_TILE(3);
                VNNI_TILE(4); VNNI_TILE(5); VNNI_TILE(6);
            }
            row += count;
        }
        g += groups;
    }
}

#undef VNNI_TILE
#undef VNNI
#endif
