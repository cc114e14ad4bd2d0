/* Multiply rows by a panel of a packed weight, with the vectors of one instruction set.
 *
 * Each number of the result is one chain of FMAs over the inputs in order, for any number of rows,
 * so its bits depend only on its own row.
 */

/* out += in * weight for a tile that fits into registers; weight has rows of `panel` columns. */
TARGET INLINE void NAME(tile)(const float *in, int64_t in_stride, const char *weight, int64_t panel,
                              float *out, int64_t inputs, int rows, int vectors, int bfloat16) {
    const int64_t size = bfloat16 ? 2 : 4;
    vf sum[6][4];
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) sum[r][v] = (vf)*(loose *)(out + r * panel + v * LANES);
    for (int64_t k = 0; k < inputs; ++k, weight += panel * size) {
        vf w[4];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v)
            w[v] = NAME(load)(weight + v * LANES * size, LANES, bfloat16);
#pragma GCC unroll 6
        for (int r = 0; r < rows; ++r) {
            const vf x = NAME(all)(in[r * in_stride + k]);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) sum[r][v] = FMA(w[v], x, sum[r][v]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) *(loose *)(out + r * panel + v * LANES) = sum[r][v];
}

#define TILE(rows) \
    case rows: NAME(tile)(in, in_stride, weight, panel, out, inputs, rows, vectors, bfloat16); break

TARGET INLINE void NAME(tiles)(const float *in, int64_t in_stride, const char *weight,
                               int64_t panel, float *out, int64_t inputs, int64_t rows, int vectors,
                               int bfloat16) {
    while (rows) {
        const int64_t turns = (rows + 5) / 6, count = (rows + turns - 1) / turns;
        switch (count) { TILE(1); TILE(2); TILE(3); TILE(4); TILE(5); TILE(6); }
        in += count * in_stride;
        out += count * panel;
        rows -= count;
    }
}

/* out (rows, panel) = bias + in (rows, inputs) * one panel of the product. */
TARGET INLINE void NAME(multiply)(const struct product *p, int64_t number, const float *in,
                                  int64_t in_stride, int64_t rows, float *out, int bfloat16) {
    const int64_t panel = p->groups * GROUP, size = bfloat16 ? 2 : 4;
    const char *weight = p->weight + number * panel * p->inputs * size;
    for (int64_t r = 0; r < rows; ++r)
        if (p->bias) memcpy(out + r * panel, p->bias + number * panel, panel * sizeof *out);
        else memset(out + r * panel, 0, panel * sizeof *out);
    for (int64_t k = 0; k < p->inputs; k += DEPTH) {
        const int64_t depth = p->inputs - k < DEPTH ? p->inputs - k : DEPTH;
        const char *from = weight + k * panel * size;
        if (LANES == GROUP && p->groups == 3)
            NAME(tiles)(in + k, in_stride, from, panel, out, depth, rows, 3, bfloat16);
        else if (LANES == GROUP)
            NAME(tiles)(in + k, in_stride, from, panel, out, depth, rows, 4, bfloat16);
        else
            for (int64_t column = 0; column < panel; column += 2 * LANES)
                NAME(tiles)(in + k, in_stride, from + column * size, panel, out + column, depth,
                            rows, 2, bfloat16);
    }
}

#undef TILE
