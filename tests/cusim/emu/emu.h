// Enough of the CUDA language to compile a kernel's own .cu file for the host: the simulated driver runs what is under
// test, not a second version of it. It checks arithmetic and indexing; not speed, misaligned access or memory order.
//
// A .cpp file includes this, then the .cu file, then says EMU_KERNEL(name) and EMU_ACCESS(name) { … }; table.cpp lists
// the name. A kernel with barriers needs emu_fiber.h instead.
#pragma once
#define HOST_EMU 1
#include <chrono>
#include <cstddef>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>

// What a kernel accesses: told once for every piece of memory, with `kind` 0 for
// a read, 1 for a write, 2 for atomic changes.
typedef void (*EmuReport)(void* ctx, const void* p, size_t n, int kind);

// The contract with the simulated driver. `params` are those of cuLaunchKernel: pointers to the arguments. `run` works
// through the grid on the calling thread, and may be called on several at once. `access` tells, without running, what
// `run` may read and write with these arguments.
struct EmuKernel {
    const char* name;
    void (*run)(const unsigned* grid, const unsigned* block, void** params);
    void (*access)(void** params, EmuReport report, void* ctx);
};
extern "C" const EmuKernel emu_kernels[];
extern "C" const unsigned emu_kernel_count;

#define __global__
#define __device__
#define __forceinline__ inline
// One block runs at a time on a thread. Unlike on a GPU, a block finds zeros or the last block's values.
#define __shared__ static thread_local

struct uint3 {
    unsigned x, y, z;
};
typedef uint3 dim3;
static thread_local uint3 threadIdx, blockIdx;
static thread_local dim3 blockDim, gridDim;
static thread_local std::chrono::steady_clock::time_point emu_begin;

// Kernels of several streams run at once, so that atomics must be ones here too.
template <class T>
static inline T atomicAdd(T* p, std::common_type_t<T> value)
{
    return __atomic_fetch_add(p, value, __ATOMIC_RELAXED);
}

template <class T>
static inline T atomicMin(T* p, std::common_type_t<T> value)
{
    T old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (value < old && !__atomic_compare_exchange_n(p, &old, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return old;
}

// The last thread of the grid sleeps until `ns` after the grid's begin; the others return at once. So the whole grid
// takes that long, however many threads it has, and no core is kept from others.
static inline void emu_sleep_until(unsigned long long ns)
{
    const bool last = threadIdx.x + 1 == blockDim.x && threadIdx.y + 1 == blockDim.y && threadIdx.z + 1 == blockDim.z
        && blockIdx.x + 1 == gridDim.x && blockIdx.y + 1 == gridDim.y && blockIdx.z + 1 == gridDim.z;
    if (last) std::this_thread::sleep_until(emu_begin + std::chrono::nanoseconds((long long)ns));
}

// Argument I of a launch, with the type that the kernel declares.
template <size_t I, class... A>
static inline auto emu_param(void (*)(A...), void** params)
{
    return *static_cast<std::tuple_element_t<I, std::tuple<A...>>*>(params[I]);
}

template <class... A, size_t... I>
static inline void emu_call(void (*kernel)(A...), void** params, std::index_sequence<I...>)
{
    kernel(emu_param<I>(kernel, params)...);
}

// Calls `body` once a block, blockIdx set.
template <class Body>
static inline void emu_blocks(const unsigned* grid, const unsigned* block, Body body)
{
    emu_begin = std::chrono::steady_clock::now();
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    for (unsigned z = 0; z < grid[2]; ++z)
        for (unsigned y = 0; y < grid[1]; ++y)
            for (unsigned x = 0; x < grid[0]; ++x) {
                blockIdx = {x, y, z};
                body();
            }
}

// A kernel without barriers: one thread after the other.
template <class... A>
static inline void emu_run(void (*kernel)(A...), const unsigned* grid, const unsigned* block, void** params)
{
    emu_blocks(grid, block, [&] {
        for (unsigned z = 0; z < block[2]; ++z)
            for (unsigned y = 0; y < block[1]; ++y)
                for (unsigned x = 0; x < block[0]; ++x) {
                    threadIdx = {x, y, z};
                    emu_call(kernel, params, std::index_sequence_for<A...>());
                }
    });
}

#define EMU_DECLARE(name)                                                                          \
    extern "C" void emu_run_##name(const unsigned* grid, const unsigned* block, void** params);    \
    extern "C" void emu_access_##name(void** params, EmuReport report, void* ctx);
#define EMU_ENTRY(name) {#name, emu_run_##name, emu_access_##name},
#define EMU_KERNEL(name)                                                                           \
    EMU_DECLARE(name)                                                                              \
    void emu_run_##name(const unsigned* grid, const unsigned* block, void** params)                \
    {                                                                                              \
        emu_run(name, grid, block, params);                                                        \
    }
#define EMU_ACCESS(name)                                                                           \
    void emu_access_##name([[maybe_unused]] void** params, [[maybe_unused]] EmuReport report,      \
        [[maybe_unused]] void* ctx)
