// Lets a torch without a GPU trace CUDA tensors that have no memory: FakeTensorMode knows their shapes, types and device,
// and this library lets autograd and scaled_dot_product_attention do what they do where there is a GPU.
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <cstring>

namespace {
using at::Tensor;
constexpr auto CUDA = c10::DeviceType::CUDA;

struct Guard final : c10::impl::NoOpDeviceGuardImpl<CUDA> {
  c10::Device getDevice() const override { return {CUDA, 0}; }
  c10::Stream getStream(c10::Device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, {CUDA, 0}); }
};

struct Hooks final : at::CUDAHooksInterface {
  bool isBuilt() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
};
static_assert(sizeof(Hooks) == sizeof(at::CUDAHooksInterface));

// What torch's own choice comes to on sm_80 and sm_90: 1 flash attention, 2 memory-efficient attention, 0 plain products.
int64_t attention(const Tensor& q, const Tensor&, const Tensor& v, const std::optional<Tensor>& mask, double, bool,
                  std::optional<double>, bool) {
  const bool half = q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16;
  const int64_t width = q.size(-1), multiple = half ? 8 : 4;
  if (half && !mask && width == v.size(-1) && width <= 256) return 1;
  return width % multiple == 0 && v.size(-1) % multiple == 0 ? 2 : 0;
}
}  // namespace

// Call it with true first; false puts back what was there, but for the choice of attention, which needs a GPU.
extern "C" void present(bool there) {
  static const Guard guard;
  static auto& registered = c10::impl::device_guard_impl_registry[static_cast<size_t>(CUDA)];
  static const auto* guard_before = registered.load();
  registered.store(there ? &guard : guard_before);
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(there ? &attention : nullptr);
  static void* hooks = const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks());
  static const Hooks fake;  // nothing but a table of functions, as those of torch
  static unsigned char hooks_before[sizeof(Hooks)];
  static const void* kept = std::memcpy(hooks_before, hooks, sizeof(Hooks));
  std::memcpy(hooks, there ? static_cast<const void*>(&fake) : kept, sizeof(Hooks));
}
