"""diffusers: a pipeline whose network was compiled by torch.compile or by .compile(), saved and loaded."""

import tempfile

import torch
from diffusers import DDIMScheduler, DDPMPipeline, UNet2DModel

import flashover


def image(network: torch.nn.Module) -> torch.Tensor:
    pipeline = DDPMPipeline(network, DDIMScheduler(num_train_timesteps=10))
    pipeline.set_progress_bar_config(disable=True)
    made = pipeline(
        batch_size=1, num_inference_steps=3, generator=torch.Generator().manual_seed(0), output_type="np"
    )  # fmt: skip
    return torch.as_tensor(made.images)


if __name__ == "__main__":
    torch.manual_seed(0)
    network = UNet2DModel(
        sample_size=8, layers_per_block=1, block_out_channels=(8, 16), norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ).eval()  # fmt: skip
    want = image(network)
    flashover.install()
    compiled = torch.compile(network)
    assert torch.allclose(image(compiled), want, atol=1e-5)
    with tempfile.TemporaryDirectory() as folder:
        DDPMPipeline(compiled, DDIMScheduler()).save_pretrained(folder)
        assert type(DDPMPipeline.from_pretrained(folder).unet) is UNet2DModel
    network.compile()
    assert torch.allclose(image(network), want, atol=1e-5)
    stats = flashover.compile_stats()
    assert stats["graphs"] == 2 and stats["graph_breaks"] == stats["eager_calls"] == 0, stats
