"""What kernels compute by their names, on names of real traces of several makers."""

from __future__ import annotations

import pytest

from strobe.perf.analysis.device.kernels import KernelKind, kernel_kind

NAMES = {
    KernelKind.ATTENTION: (
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 64, 4>>(Flash_fwd_params)",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128",
        "void cutlass::device_kernel<flash::FlashAttnFwdSm90<int>>(Params)",
        "attn_fwd",
        "_attend_kernel",
        "fmha_cutlassF_f16_aligned_64x64_rf_sm80(Params)",
        "triton_tem_fused_flex_attention_1",
    ),
    KernelKind.MATRIX: (
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
    KernelKind.OTHER: (
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


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for kind, names in NAMES.items() for name in names])
def test_a_name_says_what_a_kernel_computes(name: str, kind: KernelKind) -> None:
    assert kernel_kind(name) == kind
