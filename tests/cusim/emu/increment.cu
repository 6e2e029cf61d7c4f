// p[i] += 1 for i < n: for the simulator's own tests. Any one-dimensional grid of at least n threads.
extern "C" __global__ void cusim_increment(unsigned* p, unsigned n)
{
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) p[i] += 1;
}
