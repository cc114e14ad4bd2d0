/* All that is compiled once per instruction set. */
#include "cpu_vector.h"

#include "cpu_scan.h"

#include "cpu_product.h"

#include "cpu_gated.h"

#include "cpu_attention.h"

#undef SET
#undef LANES
#undef TARGET
#undef FMA
#undef MIN
#undef MAX
#undef WIDEN
#undef TRUNCATE
