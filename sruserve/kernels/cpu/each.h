/* Everything that is compiled once per instruction set. */
#include "vector.h"

#include "scan.h"

#include "product.h"

#include "norm.h"

#include "quantize.h"

#include "gated.h"

#include "attention.h"

#include "decoder_attention.h"

#undef SET
#undef LANES
#undef TARGET
#undef FMA
#undef MIN
#undef MAX
#undef WIDEN
#undef TRUNCATE
#undef BYTES
