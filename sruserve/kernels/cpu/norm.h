/* Norms of rows, with the vectors of one instruction set. A row's bits depend only on itself. */

/* out = (in - mean) / deviation * weight + bias for rows of n numbers; out may be in. */
TARGET static void NAME(normalize)(const struct norm *norm, const float *in, float *out,
                                   int64_t rows, int64_t n) {
    for (int64_t row = 0; row < rows; ++row, in += n, out += n) {
        vf sum = {0}, squares = {0};
        for (int64_t i = 0; i < n; i += LANES) sum += NAME(load)((const char *)(in + i), n - i, 0);
        const float mean = norm->kind == RMS ? 0.0f : NAME(total)(sum) / (float)n;
        for (int64_t i = 0; i < n; i += LANES) {
            const vf inside = NAME(load)((const char *)ONES, n - i, 0);
            const vf d = (NAME(load)((const char *)(in + i), n - i, 0) - mean) * inside;
            squares = FMA(d, d, squares);
        }
        const float variance = NAME(total)(squares) / (float)n, epsilon = (float)norm->epsilon;
        const float scale = norm->kind == STD ? 1.0f / (__builtin_sqrtf(variance) + epsilon)
                                              : 1.0f / __builtin_sqrtf(variance + epsilon);
        for (int64_t i = 0; i < n; i += LANES) {
            const vf x = NAME(load)((const char *)(in + i), n - i, 0) - mean;
            const vf weight = NAME(load)((const char *)(norm->weight + i), n - i, 0);
            vf normed = x * scale * weight;
            if (norm->bias) normed += NAME(load)((const char *)(norm->bias + i), n - i, 0);
            NAME(store)((char *)(out + i), normed, n - i, 0);
        }
    }
}
