// The kernels that the library ships.
#include "emu.h"

#include "../../../kernels/fill_check.cu"
#include "../../../kernels/masked_sum.cu"
#include "../../../kernels/spin.cu"

EMU_KERNEL(spin)
EMU_ACCESS(spin) {}

EMU_KERNEL(fill_check)
EMU_ACCESS(fill_check)
{
    const size_t bytes = emu_param<1>(fill_check, params);
    if (bytes == 0) return;
    const void* found = emu_param<4>(fill_check, params);
    report(ctx, emu_param<0>(fill_check, params), bytes, 0);
    report(ctx, found, 16, 2);
}

EMU_KERNEL(masked_sum)
EMU_ACCESS(masked_sum)
{
    const size_t rows = emu_param<2>(masked_sum, params), width = emu_param<3>(masked_sum, params);
    const void* sums = emu_param<4>(masked_sum, params);
    if (rows * width != 0) report(ctx, emu_param<0>(masked_sum, params), rows * width, 0);
    if (rows != 0) report(ctx, emu_param<1>(masked_sum, params), rows, 0);
    report(ctx, sums, (width + 1) * 8, 0);
    report(ctx, sums, (width + 1) * 8, 1);
}
