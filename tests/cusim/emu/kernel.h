// What a kernel emulated on the host offers to the simulated driver. One entry of `emu_kernels` a kernel.
#pragma once
#include <cstddef>

extern "C" {

// Told of memory that a launch reads (`write` 0) or writes (`write` 1): `n` bytes from `p`.
typedef void (*EmuAccess)(void* ctx, const void* p, size_t n, int write);

struct EmuKernel {
    const char* name;                                                        // as in the PTX
    void (*run)(const unsigned* grid, const unsigned* block, void** params); // the whole launch, on this thread
    void (*access)(void** params, EmuAccess cb, void* ctx);                  // what `run` would touch; touches nothing
};

extern const EmuKernel emu_kernels[];
extern const unsigned emu_kernel_count;
}
