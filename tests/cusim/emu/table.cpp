// The kernels that the simulated driver can run.
#include "kernel.h"

namespace {

template <class T> T param(void** params, int i) { return *static_cast<T*>(params[i]); }

// p[i] += 1 for i < n: for the simulator's own tests.
void increment_run(const unsigned* grid, const unsigned* block, void** params) {
    unsigned* p = param<unsigned*>(params, 0);
    const unsigned n = param<unsigned>(params, 1);
    for (unsigned b = 0; b < grid[0]; ++b)
        for (unsigned t = 0; t < block[0]; ++t) {
            const unsigned i = b * block[0] + t;
            if (i < n) p[i] += 1;
        }
}

void increment_access(void** params, EmuAccess cb, void* ctx) {
    unsigned* p = param<unsigned*>(params, 0);
    const size_t bytes = size_t(param<unsigned>(params, 1)) * sizeof(unsigned);
    cb(ctx, p, bytes, 0);
    cb(ctx, p, bytes, 1);
}

} // namespace

extern "C" {
const EmuKernel emu_kernels[] = {
    {"cusim_increment", increment_run, increment_access},
};
const unsigned emu_kernel_count = sizeof emu_kernels / sizeof emu_kernels[0];
}
