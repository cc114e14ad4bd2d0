/* Vectors of one instruction set: arithmetic in float32, memory in float32 or bfloat16.
 *
 * Needs SET, LANES, TARGET and the operations from FMA on; see kernel.c.
 */

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * LANES)));
typedef uint16_t vh __attribute__((vector_size(2 * LANES)));
typedef uint8_t vb __attribute__((vector_size(LANES)));
typedef float loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint16_t loose_half __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

TARGET INLINE vf NAME(all)(float value) { return value - (vf){0}; }

TARGET INLINE vf NAME(pick)(vi mask, vf yes, vf no) {
    return (vf)((mask & (vi)yes) | (~mask & (vi)no));
}

/* 2^y to 2 ulp for y in [-126.5, 127.5); 0 below. From `limit` on, at most 128, it is 2^limit, and
 * with 128 +inf. NaN stays NaN. */
TARGET INLINE vf NAME(exp2_up_to)(float limit, vf y) {
    const vf round = NAME(all)(12582912.0f + 127.0f); /* 1.5 * 2^23; 127: the exponent's bias */
    y = MIN(NAME(all)(limit), MAX(NAME(all)(-127.0f), y));
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

TARGET INLINE vf NAME(exp2)(vf y) { return NAME(exp2_up_to)(128.0f, y); }

/* The logistic function of x, given y = -log2(e) x. */
TARGET INLINE vf NAME(sigmoid)(vf y) { return 1.0f / (1.0f + NAME(exp2)(y)); }

/* tanh(x) to a relative error of 4e-7: x times a quotient of polynomials of x^2, fitted up to 8.
 * From 8 on tanh is 1 to rounding, and x^2 is clamped. NaN stays NaN. */
TARGET INLINE vf NAME(tanh)(vf x) {
    const vf z = MIN(NAME(all)(64.0f), x * x);
    vf p = NAME(all)(1.523047062e-8f), q = NAME(all)(8.522467985e-7f);
    p = FMA(p, z, NAME(all)(2.189469927e-5f));
    q = FMA(q, z, NAME(all)(3.411295704e-4f));
    p = FMA(p, z, NAME(all)(3.571600272e-3f));
    q = FMA(q, z, NAME(all)(2.616445148e-2f));
    p = FMA(p, z, NAME(all)(1.344449987e-1f));
    q = FMA(q, z, NAME(all)(4.677782719e-1f));
    p = FMA(p, z, NAME(all)(1.0f));
    q = FMA(q, z, NAME(all)(1.0f));
    return MIN(NAME(all)(1.0f), MAX(NAME(all)(-1.0f), x * p / q));
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
    if (bfloat16) memcpy(&half, from, count * 2);
    else memcpy(&whole, from, count * 4);
    return bfloat16 ? NAME(widen)(half) : whole;
}

TARGET INLINE void NAME(store)(char *to, vf value, int64_t count, int bfloat16) {
    const vh half = NAME(narrow)(value);
    if (count >= LANES) {
        if (bfloat16) *(loose_half *)to = half;
        else *(loose *)to = value;
        return;
    }
    if (bfloat16) memcpy(to, &half, count * 2);
    else memcpy(to, &value, count * 4);
}

/* Return the sum of the lanes. */
TARGET INLINE float NAME(total)(vf value) {
    union { vf whole; quarter part[LANES / 4]; } lanes = {value};
    quarter sum = lanes.part[0];
#pragma GCC unroll 4
    for (int i = 1; i < LANES / 4; ++i) sum += lanes.part[i];
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}
