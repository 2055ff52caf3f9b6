// Prototypes of encoders that read each float once. One unit: 65536 elements.
#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>
namespace cg = cooperative_groups;
#define CK(x)                                                     \
  do {                                                            \
    cudaError_t e = (x);                                          \
    if (e != cudaSuccess) {                                       \
      printf("CUDA %s at %d\n", cudaGetErrorString(e), __LINE__); \
      exit(1);                                                    \
    }                                                             \
  } while (0)
constexpr int kUnit = 65536;

__device__ __forceinline__ float4 ld(const float* p) { return *reinterpret_cast<const float4*>(p); }
__device__ __forceinline__ float4 ldcs(const float* p) { return __ldcs(reinterpret_cast<const float4*>(p)); }
__device__ __forceinline__ void st(float* p, float4 v) { *reinterpret_cast<float4*>(p) = v; }
__device__ __forceinline__ void stcs(float* p, float4 v) { __stcs(reinterpret_cast<float4*>(p), v); }
__device__ __forceinline__ float one(float x, float level, float t, unsigned& code, float& all, float& sel,
                                     unsigned& n) {
  const float m = fabsf(x);
  const bool finite = m <= 3.402823466e38f;
  const bool s = finite && m >= t;
  code = s ? (x > 0 ? 3u : 2u) : 0u;
  all = finite ? m : 0.f;
  sel = s ? m : 0.f;
  n += s;
  return s ? x - copysignf(level, x) : x;
}

__global__ void copy_k(const float4* a, float4* b, size_t n) {
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
    b[i] = a[i];
}

// P1: fixed threshold, one float4 a thread.
__global__ void __launch_bounds__(256) fixed_k(const float* g, float* r, uint8_t* out, float t, float level) {
  const size_t i = (blockIdx.x * 256ull + threadIdx.x) * 4;
  float4 a = ld(g + i), b = ld(r + i);
  float x[4] = {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
  unsigned codes = 0, c, n = 0;
  float al, se;
  for (int j = 0; j < 4; ++j) {
    x[j] = one(x[j], level, t, c, al, se, n);
    codes |= c << (6 - 2 * j);
  }
  out[i / 4] = codes;
  st(r + i, make_float4(x[0], x[1], x[2], x[3]));
}

// P2: the same, and sums by a tree: ROWS float4s a thread (their chain), then rows of 16 lanes by shuffles,
// then warps, then lanes.
template <int ROWS, bool CS>
__global__ void __launch_bounds__(256) auto_k(const float* g, float* r, uint8_t* out, const float2* scales,
                                              float* sums_all, float* sums_sel, unsigned* counts) {
  constexpr int kBlock = 1024 * ROWS;
  const size_t base = blockIdx.x * (size_t)kBlock;
  const float2 s = scales[base / kUnit];
  float4 a[ROWS], b[ROWS];
#pragma unroll
  for (int q = 0; q < ROWS; ++q) {
    const size_t i = base + q * 1024 + threadIdx.x * 4;
    a[q] = CS ? ldcs(g + i) : ld(g + i);
    b[q] = CS ? ldcs(r + i) : ld(r + i);
  }
  float all[4] = {0, 0, 0, 0}, sel[4] = {0, 0, 0, 0};
  unsigned n = 0;
#pragma unroll
  for (int q = 0; q < ROWS; ++q) {
    const size_t i = base + q * 1024 + threadIdx.x * 4;
    float x[4] = {a[q].x + b[q].x, a[q].y + b[q].y, a[q].z + b[q].z, a[q].w + b[q].w};
    unsigned codes = 0, c;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float al, se;
      x[j] = one(x[j], s.y, s.x, c, al, se, n);
      codes |= c << (6 - 2 * j);
      all[j] += al;
      sel[j] += se;
    }
    out[i / 4] = codes;
    if (CS)
      stcs(r + i, make_float4(x[0], x[1], x[2], x[3]));
    else
      st(r + i, make_float4(x[0], x[1], x[2], x[3]));
  }
#pragma unroll
  for (int d = 4; d < 32; d *= 2) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      all[j] += __shfl_xor_sync(~0u, all[j], d);
      sel[j] += __shfl_xor_sync(~0u, sel[j], d);
    }
  }
  n = __reduce_add_sync(~0u, n);
  __shared__ float sa[8][16], ss[8][16];
  __shared__ unsigned sn[8];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (lane < 4)
    for (int j = 0; j < 4; ++j) {
      sa[warp][lane * 4 + j] = all[j];
      ss[warp][lane * 4 + j] = sel[j];
    }
  if (lane == 0) sn[warp] = n;
  __syncthreads();
  if (warp == 0) {
    float v = 0;
    unsigned m = lane < 8 ? sn[lane] : 0;
    const float(*t)[16] = lane < 16 ? sa : ss;
    const int l = lane % 16;
    v = ((t[0][l] + t[1][l]) + (t[2][l] + t[3][l])) + ((t[4][l] + t[5][l]) + (t[6][l] + t[7][l]));
    for (int d = 8; d > 0; d /= 2) v += __shfl_xor_sync(~0u, v, d);
    m = __reduce_add_sync(~0u, m);
    if (lane == 0) {
      sums_all[blockIdx.x] = v;
      counts[blockIdx.x] = m;
    }
    if (lane == 16) sums_sel[blockIdx.x] = v;
  }
}
// Folds a unit's blocks and writes its header: one warp a unit.
__global__ void header_k(const float* sums_all, const float* sums_sel, const unsigned* counts, int per_unit,
                         float4* out) {
  const float* a = sums_all + blockIdx.x * per_unit;
  const float* s = sums_sel + blockIdx.x * per_unit;
  const unsigned* c = counts + blockIdx.x * per_unit;
  float x = 0, y = 0;
  unsigned n = 0;
  for (int i = threadIdx.x; i < per_unit; i += 32) {
    x += a[i];
    y += s[i];
    n += c[i];
  }
  for (int d = 16; d > 0; d /= 2) {
    x += __shfl_xor_sync(~0u, x, d);
    y += __shfl_xor_sync(~0u, y, d);
  }
  n = __reduce_add_sync(~0u, n);
  if (threadIdx.x == 0) out[blockIdx.x] = make_float4(0, x, y, __uint_as_float(n));
}

// P3: int8, blocks of 256: a warp each, eight elements a lane.
template <int PER_WARP>
__global__ void __launch_bounds__(256) int8_k(const float* g, float* r, uint8_t* codes, float* scales) {
  const int lane = threadIdx.x % 32;
  const size_t first = (blockIdx.x * 8ull + threadIdx.x / 32) * PER_WARP;
  float4 a[PER_WARP][2], b[PER_WARP][2];
#pragma unroll
  for (int w = 0; w < PER_WARP; ++w)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const size_t i = (first + w) * 256 + h * 128 + lane * 4;
      a[w][h] = ldcs(g + i);
      b[w][h] = ldcs(r + i);
    }
#pragma unroll
  for (int w = 0; w < PER_WARP; ++w) {
    float x[8];
    float most = 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      x[4 * h] = a[w][h].x + b[w][h].x;
      x[4 * h + 1] = a[w][h].y + b[w][h].y;
      x[4 * h + 2] = a[w][h].z + b[w][h].z;
      x[4 * h + 3] = a[w][h].w + b[w][h].w;
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float m = fabsf(x[j]);
      most = (m <= 3.402823466e38f) ? fmaxf(most, m) : most;
    }
    most = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(most)));
    const float scale = most / 127.f, inverse = scale > 0 ? 1.f / scale : 0.f;
    if (lane == 0) scales[first + w] = scale;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      unsigned word = 0;
      float y[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float v = x[4 * h + j];
        const int q = max(-127, min(127, __float2int_rn(v * inverse)));
        word |= (unsigned)(q & 255) << (8 * j);
        y[j] = v - q * scale;
      }
      const size_t i = (first + w) * 256 + h * 128 + lane * 4;
      *reinterpret_cast<unsigned*>(codes + i) = word;
      stcs(r + i, make_float4(y[0], y[1], y[2], y[3]));
    }
  }
}

// What a thread holds of gradient + residual: float4s, one of each row of THREADS.
template <int THREADS, int ROWS>
__device__ __forceinline__ void load_sums(const float* g, const float* r, float (&x)[ROWS][4]) {
#pragma unroll
  for (int q = 0; q < ROWS; ++q) {
    const size_t i = (q * THREADS + threadIdx.x) * 4;
    const float4 a = ldcs(g + i), b = ldcs(r + i);
    x[q][0] = a.x + b.x;
    x[q][1] = a.y + b.y;
    x[q][2] = a.z + b.z;
    x[q][3] = a.w + b.w;
  }
}

// P4: 1bit with the mean of the round's own |x|: a cluster holds a unit in registers.
template <int CTAS, int THREADS>
__global__ void __launch_bounds__(THREADS)
    one_bit_k(const float* g, float* r, unsigned* bits, float* levels) {
  constexpr int kPer = kUnit / CTAS / THREADS / 4;  // float4s a thread
  cg::cluster_group cluster = cg::this_cluster();
  const int rank = cluster.block_rank();
  const size_t unit = blockIdx.x / CTAS;
  const size_t base = unit * kUnit + (size_t)rank * (kUnit / CTAS);
  float x[kPer][4];
  float all[4] = {0, 0, 0, 0};
  load_sums<THREADS>(g + base, r + base, x);
#pragma unroll
  for (int q = 0; q < kPer; ++q)
#pragma unroll
    for (int j = 0; j < 4; ++j) all[j] += fabsf(x[q][j]);
  for (int d = 4; d < 32; d *= 2)
#pragma unroll
    for (int j = 0; j < 4; ++j) all[j] += __shfl_xor_sync(~0u, all[j], d);
  __shared__ float sa[THREADS / 32][16];
  __shared__ float total;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (lane < 4)
    for (int j = 0; j < 4; ++j) sa[warp][lane * 4 + j] = all[j];
  __syncthreads();
  if (warp == 0) {
    float v = 0;
    const int l = lane % 16;
    for (int w = 0; w < THREADS / 32; ++w) v += sa[w][l];
    for (int d = 8; d > 0; d /= 2) v += __shfl_xor_sync(~0u, v, d);
    if (lane == 0) total = v;
  }
  cluster.sync();
  float sum = 0;
  for (int c = 0; c < CTAS; ++c) sum += *cluster.map_shared_rank(&total, c);
  const float level = sum / kUnit;
  if (rank == 0 && threadIdx.x == 0) levels[unit] = level;
#pragma unroll
  for (int q = 0; q < kPer; ++q) {
    const size_t i = base + (q * THREADS + threadIdx.x) * 4;
    unsigned nib = 0;
    float y[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const bool s = x[q][j] >= 0;
      nib |= (unsigned)s << j;
      y[j] = x[q][j] - (s ? level : -level);
    }
    unsigned w = nib << (4 * (lane % 8));
    w |= __shfl_xor_sync(~0u, w, 1);
    w |= __shfl_xor_sync(~0u, w, 2);
    w |= __shfl_xor_sync(~0u, w, 4);
    if (lane % 8 == 0) bits[i / 32] = w;
    stcs(r + i, make_float4(y[0], y[1], y[2], y[3]));
  }
  cluster.sync();  // nobody leaves while others read its shared memory
}

// P5: topk: radix selection of the bound in a unit held by a cluster, then indices and values in order (ties
// by index).
template <int CTAS, int THREADS>
__global__ void __launch_bounds__(THREADS)
    topk_k(const float* g, float* r, uint16_t* indices, float* values, int k) {
  constexpr int kPer = kUnit / CTAS / THREADS / 4;
  cg::cluster_group cluster = cg::this_cluster();
  const int rank = cluster.block_rank();
  const size_t unit = blockIdx.x / CTAS;
  const size_t base = unit * kUnit + (size_t)rank * (kUnit / CTAS);
  float x[kPer][4];
  load_sums<THREADS>(g + base, r + base, x);
  __shared__ unsigned hist[2][256];
  __shared__ unsigned total[256];
  __shared__ unsigned pick[2];
  __shared__ unsigned counts[2];
  unsigned prefix = 0, left = k;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int pass = 0; pass < 4; ++pass) {
    const int shift = 24 - 8 * pass;
    unsigned* h = hist[pass & 1];
    for (int i = threadIdx.x; i < 256; i += THREADS) h[i] = 0;
    __syncthreads();
#pragma unroll
    for (int q = 0; q < kPer; ++q)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const unsigned v = __float_as_uint(x[q][j]) & 0x7fffffff;
        const bool in = pass == 0 || (v >> (shift + 8)) == prefix;
        if (pass == 0) {  // few bins are hit by many: one atomic a group of equal bins
          const unsigned bin = v >> shift;
          const unsigned peers = __match_any_sync(~0u, bin);
          if (lane == __ffs(peers) - 1) atomicAdd(&h[bin], __popc(peers));
        } else if (in)
          atomicAdd(&h[(v >> shift) & 255], 1u);
      }
    cluster.sync();
    for (int i = threadIdx.x; i < 256; i += THREADS) {
      unsigned s = 0;
      for (int c = 0; c < CTAS; ++c) s += *cluster.map_shared_rank(&h[i], c);
      total[i] = s;
    }
    __syncthreads();
    if (warp == 0) {  // from the largest bin on: the bin in which the left-th lies
      unsigned mine[8], sum = 0;
      for (int b = 0; b < 8; ++b) {
        mine[b] = total[255 - (lane * 8 + b)];
        sum += mine[b];
      }
      unsigned scan = sum;
      for (int d = 1; d < 32; d *= 2) {
        const unsigned o = __shfl_up_sync(~0u, scan, d);
        if (lane >= d) scan += o;
      }
      unsigned before = scan - sum;
      for (int b = 0; b < 8; ++b) {
        if (before < left && before + mine[b] >= left) {
          pick[0] = 255 - (lane * 8 + b);
          pick[1] = left - before;
        }
        before += mine[b];
      }
    }
    __syncthreads();
    prefix = prefix << 8 | pick[0];
    left = pick[1];
  }
  // sent: |x| above the bound, and of those that equal it the first `left`.
  unsigned above = 0, equal = 0;
#pragma unroll
  for (int q = 0; q < kPer; ++q)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const unsigned v = __float_as_uint(x[q][j]) & 0x7fffffff;
      above += v > prefix;
      equal += v == prefix;
    }
  above = __reduce_add_sync(~0u, above);
  equal = __reduce_add_sync(~0u, equal);
  if (threadIdx.x < 2) counts[threadIdx.x] = 0;
  __syncthreads();
  if (lane == 0) {
    atomicAdd(&counts[0], above);
    atomicAdd(&counts[1], equal);
  }
  cluster.sync();
  unsigned a0 = 0, e0 = 0;
  for (int c = 0; c < rank; ++c) {
    a0 += *cluster.map_shared_rank(&counts[0], c);
    e0 += *cluster.map_shared_rank(&counts[1], c);
  }
  __shared__ unsigned wa[THREADS / 32], we[THREADS / 32];
#pragma unroll
  for (int q = 0; q < kPer; ++q) {
    unsigned ca = 0, ce = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const unsigned v = __float_as_uint(x[q][j]) & 0x7fffffff;
      ca += v > prefix;
      ce += v == prefix;
    }
    unsigned packed = ca | ce << 16, scan = packed;
    for (int d = 1; d < 32; d *= 2) {
      const unsigned o = __shfl_up_sync(~0u, scan, d);
      if (lane >= d) scan += o;
    }
    if (lane == 31) {
      wa[warp] = scan & 0xffff;
      we[warp] = scan >> 16;
    }
    __syncthreads();
    unsigned pa = a0, pe = e0, ta = 0, te = 0;
    for (int w = 0; w < THREADS / 32; ++w) {
      if (w < warp) {
        pa += wa[w];
        pe += we[w];
      }
      ta += wa[w];
      te += we[w];
    }
    scan -= packed;
    pa += scan & 0xffff;
    pe += scan >> 16;
    const size_t i = base + (q * THREADS + threadIdx.x) * 4;
    float y[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const unsigned v = __float_as_uint(x[q][j]) & 0x7fffffff;
      const bool eq = v == prefix;
      const bool s = v > prefix || (eq && pe < left);
      y[j] = s ? 0.f : x[q][j];
      if (s) {
        const unsigned at = pa + min(pe, left);
        indices[unit * k + at] = (uint16_t)(i + j - unit * kUnit);
        values[unit * k + at] = x[q][j];
      }
      pa += v > prefix;
      pe += eq;
    }
    stcs(r + i, make_float4(y[0], y[1], y[2], y[3]));
    a0 += ta;
    e0 += te;
    __syncthreads();
  }
  cluster.sync();
}

template <typename F>
float time_us(F f, int reps = 20) {
  cudaEvent_t a, b;
  cudaEventCreate(&a);
  cudaEventCreate(&b);
  std::vector<float> t;
  for (int i = 0; i < 3; ++i) f();
  for (int i = 0; i < reps; ++i) {
    cudaEventRecord(a);
    f();
    cudaEventRecord(b);
    CK(cudaEventSynchronize(b));
    float ms;
    cudaEventElapsedTime(&ms, a, b);
    t.push_back(ms * 1e3f);
  }
  CK(cudaGetLastError());
  std::sort(t.begin(), t.end());
  return t[t.size() / 2];
}
template <typename K, typename... A>
void launch_cluster(K kernel, int grid, int threads, int ctas, A... args) {
  cudaLaunchConfig_t c = {};
  c.gridDim = grid;
  c.blockDim = threads;
  cudaLaunchAttribute at[1];
  at[0].id = cudaLaunchAttributeClusterDimension;
  at[0].val.clusterDim.x = ctas;
  at[0].val.clusterDim.y = 1;
  at[0].val.clusterDim.z = 1;
  c.attrs = at;
  c.numAttrs = 1;
  CK(cudaLaunchKernelEx(&c, kernel, args...));
}

int main() {
  for (size_t units : {1, 16, 384, 1900}) {
    const size_t n = units * kUnit;
    float *g, *r, *c;
    uint8_t* out;
    float2* sc;
    float *sa, *ss, *lv, *val;
    unsigned *cn, *bits;
    float4* hd;
    uint16_t* idx;
    CK(cudaMalloc(&g, n * 4));
    CK(cudaMalloc(&r, n * 4));
    CK(cudaMalloc(&c, n * 4));
    CK(cudaMalloc(&out, n));
    CK(cudaMalloc(&sc, units * 8));
    CK(cudaMalloc(&sa, n / 256));
    CK(cudaMalloc(&ss, n / 256));
    CK(cudaMalloc(&cn, n / 256));
    CK(cudaMalloc(&hd, units * 16));
    CK(cudaMalloc(&lv, n / 256 * 4));
    CK(cudaMalloc(&bits, n / 8));
    CK(cudaMalloc(&idx, n));
    CK(cudaMalloc(&val, n));
    std::vector<float> h(n), h0(n, 0.f);
    std::mt19937 gen(1);
    std::normal_distribution<float> d(0, 1);
    for (auto& v : h) v = d(gen);
    std::vector<float2> hs(units, make_float2(1.2f, 1.5f));
    CK(cudaMemcpy(sc, hs.data(), units * 8, cudaMemcpyHostToDevice));
    CK(cudaMemcpy(g, h.data(), n * 4, cudaMemcpyHostToDevice));
    CK(cudaMemset(r, 0, n * 4));
    const float copy = time_us([&] { cudaMemcpyAsync(c, g, n * 4, cudaMemcpyDeviceToDevice); });
    auto say = [&](const char* what, float us, double bytes) {
      printf("%zu units %-28s %8.1f us  by elements %.3f  by bytes %.3f\n", units, what, us, copy / us,
             copy / us * bytes / 8);
    };
    say("copy", copy, 8);
    say("copy kernel", time_us([&] { copy_k<<<132 * 8, 512>>>((float4*)g, (float4*)c, n / 4); }), 8);
    say("2bit fixed", time_us([&] { fixed_k<<<n / 1024, 256>>>(g, r, out, 1.2f, 1.5f); }), 12.25);
    auto run = [&](auto kernel, int rows) {
      kernel<<<n / 1024 / rows, 256>>>(g, r, out, sc, sa, ss, cn);
      header_k<<<units, 32>>>(sa, ss, cn, 64 / rows, hd);
    };
    say("2bit auto, 1 row", time_us([&] { run(auto_k<1, false>, 1); }), 12.25);
    say("2bit auto, 4 rows", time_us([&] { run(auto_k<4, false>, 4); }), 12.25);
    say("2bit auto, 2 rows, cs", time_us([&] { run(auto_k<2, true>, 2); }), 12.25);
    say("2bit auto, 4 rows, cs", time_us([&] { run(auto_k<4, true>, 4); }), 12.25);
    say("int8, a block a warp", time_us([&] { int8_k<1><<<n / 2048, 256>>>(g, r, out, lv); }), 13.02);
    say("int8, two blocks a warp", time_us([&] { int8_k<2><<<n / 4096, 256>>>(g, r, out, lv); }), 13.02);
    say("1bit, cluster 8 x 512",
        time_us([&] { launch_cluster(one_bit_k<8, 512>, units * 8, 512, 8, (const float*)g, r, bits, lv); }),
        12.125);
    say("1bit, cluster 8 x 1024", time_us([&] {
          launch_cluster(one_bit_k<8, 1024>, units * 8, 1024, 8, (const float*)g, r, bits, lv);
        }),
        12.125);
    say("1bit, cluster 4 x 1024", time_us([&] {
          launch_cluster(one_bit_k<4, 1024>, units * 4, 1024, 4, (const float*)g, r, bits, lv);
        }),
        12.125);
    const int k = 656;
    say("topk 1%, cluster 8 x 512",
        time_us([&] { launch_cluster(topk_k<8, 512>, units * 8, 512, 8, (const float*)g, r, idx, val, k); }),
        12.06);
    say("topk 1%, cluster 8 x 1024", time_us([&] {
          launch_cluster(topk_k<8, 1024>, units * 8, 1024, 8, (const float*)g, r, idx, val, k);
        }),
        12.06);
    // Right? auto's sums, topk's selection, from residual 0.
    CK(cudaMemset(r, 0, n * 4));
    run(auto_k<4, true>, 4);
    std::vector<float4> hh(units);
    CK(cudaMemcpy(hh.data(), hd, units * 16, cudaMemcpyDeviceToHost));
    double all = 0, sel = 0;
    unsigned cnt = 0;
    for (int i = 0; i < kUnit; ++i) {
      all += fabs(h[i]);
      if (fabs(h[i]) >= 1.2f) {
        sel += fabs(h[i]);
        ++cnt;
      }
    }
    unsigned got;
    memcpy(&got, &hh[0].w, 4);
    printf("  sums %.3f (%.3f) %.3f (%.3f) %u (%u)\n", hh[0].y, all, hh[0].z, sel, got, cnt);
    CK(cudaMemset(r, 0, n * 4));
    launch_cluster(topk_k<8, 512>, units * 8, 512, 8, (const float*)g, r, idx, val, k);
    std::vector<uint16_t> hi(k);
    CK(cudaMemcpy(hi.data(), idx, k * 2, cudaMemcpyDeviceToHost));
    std::vector<int> o(kUnit);
    for (int i = 0; i < kUnit; ++i) o[i] = i;
    std::stable_sort(o.begin(), o.end(), [&](int a, int b) { return fabs(h[a]) > fabs(h[b]); });
    o.resize(k);
    std::sort(o.begin(), o.end());
    int wrong = 0;
    for (int i = 0; i < k; ++i) wrong += o[i] != hi[i];
    printf("  topk: %d of %d indices differ\n", wrong, k);
    cudaFree(g);
    cudaFree(r);
    cudaFree(c);
    cudaFree(out);
    cudaFree(sc);
    cudaFree(sa);
    cudaFree(ss);
    cudaFree(cn);
    cudaFree(hd);
    cudaFree(lv);
    cudaFree(bits);
    cudaFree(idx);
    cudaFree(val);
  }
}
