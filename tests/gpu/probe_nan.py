"""What the libraries' fused ReLUs make of NaN (not a test; run by hand on a device)."""

import torch

with torch.no_grad():
    x = torch.randn(2, 16, 8, 8, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    x[0, 0, 0, 0] = float("nan")
    w = torch.randn(16, 16, 3, 3, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    b = torch.randn(16, device="cuda", dtype=torch.bfloat16)
    z = torch.randn_like(x)
    plain = torch.relu(torch.nn.functional.conv2d(x, w, b, padding=1))
    fused = torch.cudnn_convolution_relu(x, w, b, [1, 1], [1, 1], [1, 1], 1)
    added = torch.cudnn_convolution_add_relu(x, w, z, 1.0, b, [1, 1], [1, 1], [1, 1], 1)
    print(
        "conv NaNs: eager",
        plain.isnan().sum().item(),
        "relu",
        fused.isnan().sum().item(),
        "add_relu",
        added.isnan().sum().item(),
    )
    a = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16)
    a[3, 3] = float("nan")
    m, c = (
        torch.randn(64, 64, device="cuda", dtype=torch.bfloat16),
        torch.randn(64, device="cuda", dtype=torch.bfloat16),
    )
    print(
        "addmm NaNs: eager", torch.relu(torch.addmm(c, a, m)).isnan().sum().item(), "activation",
        torch._addmm_activation(c, a, m, use_gelu=False).isnan().sum().item(),
    )  # fmt: skip
