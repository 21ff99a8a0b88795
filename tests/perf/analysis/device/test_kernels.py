"""Names as profilers write them, the group and the kind of each, and times to the nanosecond."""

from __future__ import annotations

import pytest

from made_traces import trace_of
from strobe.perf.analysis.device import kernels
from strobe.perf.analysis.device.activity import activity, device_views
from strobe.perf.analysis.device.kernels import demangle, full_name, kernel_name, kernel_part, kernel_table
from strobe.perf.analysis.parts import Part
from strobe.perf.trace import DeviceEvent

_LAMBDA = (
    "(at::TensorIteratorBase&)::{lambda()#2}::operator()() const::{lambda()#4}::operator()() const::{lambda(c10::BFloat16)#1}"
)
_AT = "void at::native::"
_FA2_TRAITS = "<128, 128, 64, 4, false, false, cutlass::bfloat16_t, Flash_kernel_traits<128, 128, 64, 4, cutlass::bfloat16_t> >"


@pytest.mark.parametrize(
    ("raw", "group"),
    [
        # PyTorch: what the kernel computes is a template argument
        (
            f"{_AT}vectorized_elementwise_kernel<8, at::native::tanh_kernel_cuda{_LAMBDA}, std::array<char*, 2ul> >(int)",
            "vectorized_elementwise_kernel<tanh_kernel_cuda>",
        ),
        (
            f"{_AT}vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<long, long, bool, at::native::(anonymous "
            "namespace)::CompareEqFunctor<long> >, std::array<char*, 2ul> >(int)",
            "vectorized_elementwise_kernel<CompareEqFunctor>",
        ),
        (
            f"{_AT}(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata"
            "<2>, at::native::(anonymous namespace)::BinaryOpListAlphaFunctor<float, 2, 2, 0>, std::plus<float>, float>(int)",
            "multi_tensor_apply_kernel<plus>",
        ),
        # attention, generation by generation
        (
            f"void pytorch_flash::flash_fwd_splitkv_kernel<pytorch_flash::Flash_fwd_kernel_traits{_FA2_TRAITS}, false>(P)",
            "pytorch_flash::flash_fwd_splitkv_kernel",
        ),
        (
            "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, "
            "cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, cutlass::bfloat16_t> > > >(flash::Params)",
            "cutlass::device_kernel<FlashAttnFwdSm90>",
        ),
        ("kernel_flash_fwd_sm100FlashForwardSm100_object_at__tensor0000o11101213_0", "kernel_flash_fwd_sm100FlashForwardSm100"),
        ("cudnn_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1", "cudnn_native_sdpa_sm90_flash_fprop_wgmma_f16"),
        # matrix products, by family
        ("nvjet_sm90_tst_64x8_64x16_1x2_h_bz_NNT", "nvjet_sm90_tst"),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn", "ampere_bf16_s16816gemm_bf16"),
        ("depthwise_conv_3x3_kernel", "depthwise_conv_3x3_kernel"),
        ("void Wrapped<Foo>::run<Bar>(int)", "Wrapped::run<Foo>"),
        (
            "void cutlass::Kernel2<cutlass_80_bf16_gemm_bf16_32x32_128x2_tn>(Params)",
            "cutlass::Kernel2<cutlass_80_bf16_gemm_bf16>",
        ),
        (
            "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN",
            "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs",
        ),
        ("batched_transpose_256x4_half", "batched_transpose"),
        # code generators
        ("triton_poi_fused_add_cos_sin_12", "triton_poi_fused_add_cos_sin"),
        ("loop_add_fusion.12", "loop_add_fusion"),
        ("_attn_fwd_0d1d2d3de4de5c", "_attn_fwd"),
        ("my_kernel_3fa9b2c4d5e6", "my_kernel"),
        # communication, copies, names that say all they can
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclArgs<4096ul>)", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD (Device -> Device)"),
        ("attn_fwd", "attn_fwd"),
        ("64x64", "64x64"),
        ("void ", "void "),
        ("", ""),
    ],
)
def test_groups(raw: str, group: str) -> None:
    assert kernel_name(raw) == group


def test_mangled_names_are_demangled_first() -> None:
    raw = (
        "_ZN7cutlass13device_kernelIN5flash23FlashAttnFwdPostprocessINS_10bfloat16_tELj256ELj192ELb1ELNS1_10SinkLayoutE0E"
        "NS_4arch4Sm90EEEEEvNT_6ParamsE"
    )
    assert full_name(raw).startswith(
        "void cutlass::device_kernel<flash::FlashAttnFwdPostprocess<cutlass::bfloat16_t, 256u, 192u,"
    )
    assert kernel_name(raw) == "cutlass::device_kernel<FlashAttnFwdPostprocess>"
    mangled = "_Z10add_kernelPfS_i.kd"
    assert (kernel_name(mangled), full_name(mangled)) == ("add_kernel", "add_kernel(float*, float*, int)")


@pytest.mark.parametrize(
    ("behind", "left"),
    [
        (" [clone .1]", ""), (".kd.kd", ""), (" [clone .isra.0] [clone .cold].kd", ""), (" [clone .part.3].kd [clone .kd]", ""),
        (" [clone .1]]", " [clone .1]]"), (" [1]", " [1]"), (" [clone .1] [2]", " [clone .1] [2]"),
    ],
)  # fmt: skip
def test_what_compilers_add_behind_a_name_is_cut(behind: str, left: str) -> None:
    assert full_name(f"add_kernel{behind}") == f"add_kernel{left}"


@pytest.mark.parametrize("raw", ["_Znot a name", "_Z", "_Z\x00\ud800", "_ZN7cutlass13device"])
def test_what_cannot_be_demangled_stays(raw: str) -> None:
    assert kernel_name(raw) == full_name(raw) == raw


def test_without_a_cpp_runtime_names_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels._runtime.cache_clear()
    monkeypatch.setattr(kernels, "_LIBRARIES", ("libnothing-of-this-name.so",))
    try:
        assert demangle("_Z10add_kernelPfS_i") == "_Z10add_kernelPfS_i"
    finally:
        kernels._runtime.cache_clear()


@pytest.mark.parametrize(
    "raw", ["a<b", "operator<", "->", "(x)", "f<<>>>(", "void <>()", "::", "x" * 20_000, "f<" * 5_000, "_0" * 5_000]
)
def test_any_text_has_a_group(raw: str) -> None:
    assert kernel_name(raw)


NAMES = {
    Part.OTHER_ATTENTION: (
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 64, 4>>(Flash_fwd_params)",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128",
        "void cutlass::device_kernel<flash::FlashAttnFwdSm90<int>>(Params)",
        "attn_fwd",
        "_attend_kernel",
        "fmha_cutlassF_f16_aligned_64x64_rf_sm80(Params)",
        "triton_tem_fused_flex_attention_1",
    ),
    Part.MATRIX: (
        "nvjet_sm90_tst_128x64_64x7_1x2_h_bz_TNT",
        "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT64x64x64",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_32x6_tn_align8>(Params)",
        "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x32",
        "void splitKreduce_kernel<32, 16, int, float>(Params)",
        "void gemv2T_kernel_val<int, float, 128>(Params)",
        "triton_tem_fused_mm_3",
        "implicit_convolve_sgemm",
        "_scaled_mm_kernel",
    ),
    Part.OTHER_KERNELS: (
        "triton_poi_fused_addmm_gelu_4",
        "triton_per_fused__scaled_dot_product_flash_attention_7",
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)",
        "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda()::{lambda()#1}>(int)",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)",
        "softmax_warp_forward",
        "convert_fp8",
        "comma_kernel",
        "_round_kernel",
    ),
}


@pytest.mark.parametrize(("name", "part"), [(name, part) for part, names in NAMES.items() for name in names])
def test_a_name_says_what_a_kernel_computes(name: str, part: Part) -> None:
    assert kernel_part(name) == part


@pytest.mark.parametrize("epoch", [0, 1_751_410_836_000_000_001])
def test_events_shorter_than_a_microsecond_keep_every_nanosecond(epoch: int) -> None:
    """Rounding starts up and ends down to microseconds loses up to 1 µs a call; here it would lose all.

    A float64 of a time since the epoch loses up to 256 ns of it.
    """
    starts = range(epoch, epoch + 100_000, 1_000)
    (view,) = device_views(trace_of([DeviceEvent("k", "kernel", start, start + 777, 0, 7, 0, None) for start in starts]))
    ((row, _),) = kernel_table(view)
    assert (row.sum_ns, row.exclusive_ns, row.min_ns, row.max_ns) == (77_700, 77_700, 777, 777)
    assert activity(view).device.idle_ns == 99 * 223
