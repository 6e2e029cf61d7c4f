// Barriers for emulated kernels: the threads of a block are fibers of one OS thread, and __syncthreads() hands over to
// the next. Each pass takes every fiber to its next barrier or to its end. Odd blocks run from the last thread to the
// first, so that code which forgot a barrier does not get the one lucky order in every block. Not checked: threads that
// wait at different barriers.
#pragma once
#include "emu.h"
#include <functional>
#include <memory>
#include <ucontext.h>
#include <vector>

struct EmuFiber {
    ucontext_t context;
    bool done;
};
static thread_local ucontext_t emu_scheduler;
static thread_local EmuFiber* emu_fiber;
static thread_local const std::function<void()>* emu_body;

// Not inlined: a fiber must not carry over an address that was computed before the switch.
__attribute__((noinline)) static void __syncthreads()
{
    swapcontext(&emu_fiber->context, &emu_scheduler);
}

static void emu_fiber_main()
{
    (*emu_body)();
    emu_fiber->done = true;
}

static inline void emu_block_of_fibers(const unsigned* block, std::vector<EmuFiber>& fibers, char* stacks, size_t stack)
{
    const unsigned n = (unsigned)fibers.size();
    for (unsigned i = 0; i < n; ++i) {
        EmuFiber& f = fibers[i];
        f.done = false;
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = stacks + i * stack;
        f.context.uc_stack.ss_size = stack;
        f.context.uc_link = &emu_scheduler;
        makecontext(&f.context, emu_fiber_main, 0);
    }
    const bool backwards = (blockIdx.x + blockIdx.y + blockIdx.z) % 2 == 1;
    for (bool running = true; running;) {
        running = false;
        for (unsigned k = 0; k < n; ++k) {
            const unsigned i = backwards ? n - 1 - k : k;
            if (fibers[i].done) continue;
            threadIdx = {i % block[0], i / block[0] % block[1], i / (block[0] * block[1])};
            emu_fiber = &fibers[i];
            swapcontext(&emu_scheduler, &fibers[i].context);
            running |= !fibers[i].done;
        }
    }
}

template <class... A>
static inline void emu_run_fibers(void (*kernel)(A...), const unsigned* grid, const unsigned* block, void** params)
{
    const size_t stack = 64 << 10;
    std::vector<EmuFiber> fibers(block[0] * block[1] * block[2]);
    const std::unique_ptr<char[]> stacks(new char[fibers.size() * stack]);
    const std::function<void()> body = [&] { emu_call(kernel, params, std::index_sequence_for<A...>()); };
    emu_body = &body;
    emu_blocks(grid, block, [&] { emu_block_of_fibers(block, fibers, stacks.get(), stack); });
}

#define EMU_BARRIER_KERNEL(name)                                                                   \
    EMU_DECLARE(name)                                                                              \
    void emu_run_##name(const unsigned* grid, const unsigned* block, void** params)                \
    {                                                                                              \
        emu_run_fibers(name, grid, block, params);                                                 \
    }
