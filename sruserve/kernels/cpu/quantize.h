/* Rows of floats as bytes, with the vectors of one instruction set; every set gives the same bytes.
 *
 * A row x becomes round(127 x / max|x|) + 128, in 1 to 255, and the scale max|x| / 127.
 */

/* in: rows of n floats. out: rows of `stride` bytes, a multiple of 16; the rest of a row is 128.
 * A row that is not finite gets NaN for its scale, and one without a number above TINY only 128. */
TARGET static void NAME(quantize)(const float *in, uint8_t *out, float *scale, int64_t rows,
                                  int64_t n, int64_t stride) {
    const vf middle = NAME(all)(12582912.0f + 128.0f); /* 1.5 * 2^23: its last bits are units */
    for (int64_t row = 0; row < rows; ++row, in += n, out += stride) {
        union { vi whole; int32_t lane[LANES]; } largest = {{0}};
        for (int64_t i = 0; i < n; i += LANES) {
            const vi bits = (vi)NAME(load)((const char *)(in + i), n - i, 0) & 0x7fffffff;
            const vi larger = bits > largest.whole;
            largest.whole = (larger & bits) | (~larger & largest.whole);
        }
        union { int32_t bits; float value; } most = {0};
        for (int i = 0; i < LANES; ++i)
            most.bits = largest.lane[i] > most.bits ? largest.lane[i] : most.bits;
        const int finite = most.bits < 0x7f800000;
        const float up = finite && most.value > TINY ? 127.0f / most.value : 0.0f;
        scale[row] = finite ? most.value * (1.0f / 127.0f) : __builtin_nanf("");
        for (int64_t i = 0; i < stride; i += LANES) {
            vf x = {0};
            if (up > 0.0f && i < n) x = NAME(load)((const char *)(in + i), n - i, 0);
            const vb bytes = BYTES((vi)(x * up + middle) & 0xff);
            memcpy(out + i, &bytes, sizeof bytes);
        }
    }
}
