// Every emulated kernel, by the name that cuModuleGetFunction looks for. One list names them all, so that the linker
// can drop none.
#include "emu.h"

#define EMU_KERNELS(X) \
    X(spin)            \
    X(fill_check)      \
    X(masked_sum)      \
    X(block_sum)       \
    X(cusim_increment)

EMU_KERNELS(EMU_DECLARE)
const EmuKernel emu_kernels[] = {EMU_KERNELS(EMU_ENTRY)};
const unsigned emu_kernel_count = sizeof emu_kernels / sizeof emu_kernels[0];
