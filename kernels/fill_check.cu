// Compares `bytes` bytes at `src` with the generator of fill_check.rs from position `first` on, and adds what it finds:
// found[0] += how many differ, found[1] = min(found[1], position of the first that differs). The caller starts with
// {0, ~0}, and may let several launches, also concurrent ones, add to the same pair. Any length, any alignment, any
// one-dimensional grid; positions wrap at 2^64.
//
// Whole aligned words are loaded, then the bytes before and after them. `src` is not __restrict__: the loads stay
// ordinary ones, not those of the read-only cache, since the aim is to see what memory holds.
typedef unsigned long long u64;
typedef u64 __attribute__((may_alias)) fill_check_word;

// Word `i` of the stream of `seed`: output i + 1 of SplitMix64.
static __device__ __forceinline__ u64 fill_check_output(u64 seed, u64 i)
{
    u64 z = seed + (i + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

// The eight bytes from `position` on, the first in the lowest bits.
static __device__ __forceinline__ u64 fill_check_at(u64 seed, u64 position)
{
    const u64 i = position >> 3;
    const unsigned shift = (unsigned)(position & 7) * 8;
    const u64 low = fill_check_output(seed, i);
    if (shift == 0) return low;
    return low >> shift | fill_check_output(seed, (i + 1) & (~0ull >> 3)) << (64 - shift);
}

extern "C" __global__ void fill_check(const unsigned char* src, u64 bytes, u64 seed, u64 first, u64* found)
{
    u64 head = (0 - (u64)src) & 7;
    if (head > bytes) head = bytes;
    const u64 words = (bytes - head) / 8, tail = head + words * 8;
    const u64 begin = (u64)blockIdx.x * blockDim.x + threadIdx.x, stride = (u64)gridDim.x * blockDim.x;
    u64 wrong = 0, lowest = ~0ull;

    for (u64 i = begin; i < words; i += stride) {
        const u64 at = head + i * 8;
        const u64 differ = *(const fill_check_word*)(src + at) ^ fill_check_at(seed, first + at);
        if (differ == 0) continue;
        for (unsigned b = 0; b < 8; ++b) {
            if ((differ >> (b * 8) & 0xff) == 0) continue;
            wrong += 1;
            if (first + at + b < lowest) lowest = first + at + b;
        }
    }
    // Up to seven bytes before the words, and up to seven after them.
    for (u64 i = begin; i < head + (bytes - tail); i += stride) {
        const u64 at = i < head ? i : tail + (i - head);
        if (src[at] == (unsigned char)fill_check_at(seed, first + at)) continue;
        wrong += 1;
        if (first + at < lowest) lowest = first + at;
    }
    if (wrong != 0) {
        atomicAdd(&found[0], wrong);
        atomicMin(&found[1], lowest);
    }
}
