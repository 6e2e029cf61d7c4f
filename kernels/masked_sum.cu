// Sums the rows of `x`, [rows, width] bytes, that `valid` marks: sums[c] += the sum of their column c for each c < width,
// and sums[width] += how many they are. Any number of rows, any width, any one-dimensional grid; a launch is not atomic,
// so launches that add to the same sums follow each other. What `x` holds in rows that are not valid is not read.

typedef unsigned long long u64;

extern "C" __global__ void masked_sum(const unsigned char* x, const unsigned char* valid, unsigned rows, unsigned width,
    u64* sums)
{
    const u64 begin = (u64)blockIdx.x * blockDim.x + threadIdx.x, stride = (u64)gridDim.x * blockDim.x;
    for (u64 column = begin; column <= width; column += stride) {
        u64 sum = 0;
        for (unsigned row = 0; row < rows; ++row) {
            if (valid[row] == 0) continue;
            sum += column == width ? 1 : x[(u64)row * width + column];
        }
        sums[column] += sum;
    }
}
