// A kernel of the tests alone.
#include "emu.h"

#include "increment.cu"

EMU_KERNEL(cusim_increment)
EMU_ACCESS(cusim_increment)
{
    const size_t bytes = size_t(emu_param<1>(cusim_increment, params)) * sizeof(unsigned);
    const void* p = emu_param<0>(cusim_increment, params);
    if (bytes == 0) return;
    report(ctx, p, bytes, 0);
    report(ctx, p, bytes, 1);
}
