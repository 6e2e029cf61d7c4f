// Computes for `ns` nanoseconds and touches no memory: the step of an overlap benchmark.
//
// The clock is %globaltimer. clock64() counts cycles of an SM, whose frequency moves with power and heat, so it can't
// hold a time. %globaltimer counts nanoseconds but is updated in steps: about 1 us on data centre GPUs, up to 1 ms on
// some others; the time is wrong by up to one step at either end, so steps of milliseconds are what it is good for, and
// events say what it really was. Between two readings each thread computes, since a thread that only reads the clock
// would wait for it and leave the SM idle.
//
// Every thread measures from its own begin. The whole grid takes `ns` where all its blocks are resident at once; blocks
// that must wait for a place make it longer by `ns` a wave. Emulated, the grid takes `ns` from its begin, asleep.
extern "C" __global__ void spin(unsigned long long ns)
{
#ifdef HOST_EMU
    emu_sleep_until(ns);
#else
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    float x = (float)threadIdx.x;
    do {
        // A chain of 64, about 0.2 us; volatile, since nobody uses the result. It tends to 1, so it stays finite.
        #pragma unroll 8
        for (int i = 0; i < 64; ++i) asm volatile("fma.rn.f32 %0, %0, %1, %1;" : "+f"(x) : "f"(0.5f));
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - begin < ns);
#endif
}
