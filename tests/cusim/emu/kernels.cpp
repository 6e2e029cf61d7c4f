// The kernels that the library ships.
#include "emu.h"

#include "../../../kernels/fill_check.cu"
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
