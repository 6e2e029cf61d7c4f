// A kernel of the tests alone: barriers and shared memory.
#include "emu_fiber.h"

#include "block_sum.cu"

EMU_BARRIER_KERNEL(block_sum)
EMU_ACCESS(block_sum)
{
    const size_t n = emu_param<1>(block_sum, params);
    const void* sum = emu_param<2>(block_sum, params);
    if (n != 0) report(ctx, emu_param<0>(block_sum, params), n * sizeof(unsigned), 0);
    report(ctx, sum, sizeof(unsigned), 2);
}
