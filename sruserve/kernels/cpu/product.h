/* Multiply rows by a panel of a packed weight, with the vectors of one instruction set.
 *
 * Each number of the result is one chain of FMAs over the inputs in order, for any number of rows,
 * so its bits depend only on its own row. half: the weight is in bfloat16.
 */

/* out += in * weight for a tile that fits into registers; weight has rows of `panel` columns. */
TARGET INLINE void NAME(tile)(const float *in, int64_t in_stride, const char *weight, int64_t panel,
                              float *out, int64_t out_stride, int64_t inputs, int rows, int vectors,
                              int half) {
    const int64_t size = half ? 2 : 4;
    vf sum[6][4];
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v)
            sum[r][v] = (vf)*(loose *)(out + r * out_stride + v * LANES);
    for (int64_t k = 0; k < inputs; ++k, weight += panel * size) {
        vf w[4];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v)
            w[v] = NAME(load)(weight + v * LANES * size, LANES, half);
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
        for (int v = 0; v < vectors; ++v) *(loose *)(out + r * out_stride + v * LANES) = sum[r][v];
}

#define TILE(rows)                                                                             \
    case rows:                                                                                 \
        NAME(tile)(in, in_stride, weight, panel, out, out_stride, inputs, rows, vectors, half); \
        break

TARGET INLINE void NAME(tiles)(const float *in, int64_t in_stride, const char *weight,
                               int64_t panel, float *out, int64_t out_stride, int64_t inputs,
                               int64_t rows, int vectors, int half) {
    while (rows) {
        const int64_t turns = (rows + 5) / 6, count = (rows + turns - 1) / turns;
        switch (count) { TILE(1); TILE(2); TILE(3); TILE(4); TILE(5); TILE(6); }
        in += count * in_stride;
        out += count * out_stride;
        rows -= count;
    }
}

/* out (rows, columns) = bias + in (rows, inputs) * the first columns of one panel of the product.
 * It may write all columns of the panel. */
TARGET INLINE void NAME(multiply)(const struct product *p, int64_t number, const float *in,
                                  int64_t in_stride, int64_t rows, float *out, int64_t out_stride,
                                  int64_t columns, int half) {
    const int64_t panel = p->groups * GROUP, size = half ? 2 : 4;
    const char *weight = p->weight + number * panel * p->inputs * size;
    for (int64_t r = 0; r < rows; ++r)
        if (p->bias) memcpy(out + r * out_stride, p->bias + number * panel, panel * sizeof *out);
        else memset(out + r * out_stride, 0, panel * sizeof *out);
    for (int64_t k = 0; k < p->inputs; k += DEPTH) {
        const int64_t depth = p->inputs - k < DEPTH ? p->inputs - k : DEPTH;
        const char *from = weight + k * panel * size;
        if (LANES == GROUP && columns <= LANES)
            NAME(tiles)(in + k, in_stride, from, panel, out, out_stride, depth, rows, 1, half);
        else if (LANES == GROUP && p->groups == 3)
            NAME(tiles)(in + k, in_stride, from, panel, out, out_stride, depth, rows, 3, half);
        else if (LANES == GROUP)
            NAME(tiles)(in + k, in_stride, from, panel, out, out_stride, depth, rows, 4, half);
        else
            for (int64_t column = 0; column < columns; column += 2 * LANES)
                NAME(tiles)(in + k, in_stride, from + column * size, panel, out + column,
                            out_stride, depth, rows, 2, half);
    }
}

/* One block of rows times one panel, of the product of a whole matrix. */
TARGET static void NAME(block)(const struct matrix *m, int64_t first, int64_t rows, int64_t panel) {
    _Alignas(64) float part[MAX_SEQUENCES * 4 * GROUP];
    const int64_t wide = m->product.groups * GROUP, column = panel * wide;
    const int64_t inputs = m->product.inputs, outputs = m->product.outputs;
    const int64_t columns = outputs - column < wide ? outputs - column : wide;
    const float *in = m->in + first * inputs;
    float *out = m->out + first * outputs + column;
    if (columns == wide) {
        NAME(multiply)(&m->product, panel, in, inputs, rows, out, outputs, wide, 0);
        return;
    }
    NAME(multiply)(&m->product, panel, in, inputs, rows, part, wide, columns, 0);
    for (int64_t r = 0; r < rows; ++r)
        memcpy(out + r * outputs, part + r * wide, columns * sizeof *out);
}

#undef TILE
