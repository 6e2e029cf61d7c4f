// *sum += in[0] + … + in[n - 1], by a tree in shared memory: the test of emulated barriers. Any one-dimensional grid,
// up to 1024 threads a block.
extern "C" __global__ void block_sum(const unsigned* in, unsigned n, unsigned* sum)
{
    __shared__ unsigned part[1024];
    unsigned own = 0;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) own += in[i];
    part[threadIdx.x] = own;
    __syncthreads();
    for (unsigned width = blockDim.x; width > 1;) {
        const unsigned half = (width + 1) / 2;
        if (threadIdx.x + half < width) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
        width = half;
    }
    if (threadIdx.x == 0) atomicAdd(sum, part[0]);
}
